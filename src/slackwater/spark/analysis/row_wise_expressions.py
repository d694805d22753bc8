"""Lists of the expression classes in Spark 4.0 to 4.3 that are row-wise, and of common classes that are not.

A row-wise expression is deterministic and depends only on its row. Aggregates and window functions are in `ROW_WISE`
too, because the plan node that contains them decides whether they are allowed. New expressions of later Spark versions
are rejected until their classes are added here.
"""

from __future__ import annotations

ROW_WISE = frozenset(
    """
    Abs Acos Acosh Add AddMonths AesDecrypt AesEncrypt AggregateExpression Alias And AnyValue
    ApplyFunctionExpression ApproxCountDistinctForIntervals ApproxTopK ApproxTopKAccumulate ApproxTopKCombine
    ApproxTopKEstimate ApproximatePercentile ArrayAggregate ArrayAppend ArrayBinarySearch ArrayCompact ArrayContains
    ArrayDistinct ArrayExcept ArrayExists ArrayFilter ArrayForAll ArrayInsert ArrayIntersect ArrayJoin ArrayMax
    ArrayMin ArrayPosition ArrayPrepend ArrayRemove ArrayRepeat ArraySize ArraySort ArrayTransform ArrayUnion
    ArraysOverlap ArraysZip Ascii Asin Asinh AssertTrue AtLeastNNonNulls Atan Atan2 Atanh AttributeReference Average
    BRound Base32 Base64 Between Bin BinaryPad BinaryPredicate BitAndAgg BitLength BitOrAgg BitXorAgg BitmapAndAgg
    BitmapBitPosition BitmapBucketNumber BitmapConstructAgg BitmapCount BitmapOrAgg BitwiseAnd BitwiseCount
    BitwiseGet BitwiseNot BitwiseOr BitwiseXor BloomFilterAggregate BloomFilterMightContain BoolAnd BoolOr CaseWhen
    Cast Cbrt Ceil CheckOverflow CheckOverflowInSum Chr Coalesce Collate Collation CollationAwareMurmur3Hash
    CollationAwareXxHash64 CollationKey CollectList CollectSet CollectUnion CommonExpressionDef CommonExpressionRef
    Concat ConcatWs Contains Conv ConvertTimezone Corr Cos Cosh Cot Count CountIf CountMinSketchAgg CounterDiff
    CounterDiffWithStartTime CovPopulation CovSample Crc32 CreateArray CreateMap CreateNamedStruct Csc CsvToStructs
    Cube CumeDist CurrentCatalog CurrentDatabase CurrentPath CurrentRow CurrentTimeZone CurrentUser DateAdd
    DateAddInterval DateAddYMInterval DateDiff DateFormatClass DateFromUnixDate DateSub DatetimeSub DayName
    DayOfMonth DayOfWeek DayOfYear DecimalAddNoOverflowCheck DecimalDivideWithOverflowCheck
    DecimalSubtractNoOverflowCheck Decode DenseRank Divide DivideDTInterval DivideInterval DivideYMInterval
    DropField ElementAt Elt Empty2Null Encode EndsWith EqualNull EqualNullSafe EqualTo EulerNumber Exp Explode Expm1
    Extract ExtractANSIIntervalDays ExtractANSIIntervalHours ExtractANSIIntervalMinutes ExtractANSIIntervalMonths
    ExtractANSIIntervalSeconds ExtractANSIIntervalYears ExtractIntervalDays ExtractIntervalHours
    ExtractIntervalMinutes ExtractIntervalMonths ExtractIntervalSeconds ExtractIntervalYears Factorial FindInSet
    First Flatten Floor FormatNumber FormatString FromAvro FromProtobuf FromUTCTimestamp FromUnixTime GeneratorOuter
    Get GetArrayItem GetArrayStructFields GetJsonObject GetMapValue GetStructField GetTimestamp GreaterThan
    GreaterThanOrEqual Greatest Grouping GroupingID GroupingSets Hex HistogramNumeric HiveGenericUDF HiveGenericUDTF
    HiveSimpleUDF HllSketchAgg HllSketchEstimate HllUnion HllUnionAgg Hmac Hour HoursOfTime HyperLogLogPlusPlus
    Hypot ILike If In InSet InitCap Inline IntegralDivide Invoke IsNaN IsNotNull IsNull IsValidUTF8 IsValidVariant
    IsVariantNull JaroWinkler JsonObjectKeys JsonTable JsonToStructs JsonTuple KllMergeAggBigint KllMergeAggDouble
    KllMergeAggFloat KllSketchAggBigint KllSketchAggDouble KllSketchAggFloat KllSketchGetNBigint KllSketchGetNDouble
    KllSketchGetNFloat KllSketchGetQuantileBigint KllSketchGetQuantileDouble KllSketchGetQuantileFloat
    KllSketchGetRankBigint KllSketchGetRankDouble KllSketchGetRankFloat KllSketchMergeBigint KllSketchMergeDouble
    KllSketchMergeFloat KllSketchToStringBigint KllSketchToStringDouble KllSketchToStringFloat
    KnownFloatingPointNormalized KnownNotContainsNull KnownNotNull KnownNullable Kurtosis Lag LambdaFunction Last
    LastDay Lead Least Left Length LengthOfJsonArray LessThan LessThanOrEqual Levenshtein Like LikeAll LikeAny
    ListAgg Literal Log Log10 Log1p Log2 Logarithm Lower Luhncheck MakeDTInterval MakeDate MakeDecimal MakeInterval
    MakeTime MakeTimestamp MakeTimestampFromDateTime MakeTimestampLTZ MakeTimestampLTZNanos MakeTimestampNTZ
    MakeTimestampNTZNanos MakeValidUTF8 MakeYMInterval MapConcat MapContainsKey MapEntries MapFilter MapFromArrays
    MapFromEntries MapKeys MapSort MapValues MapZipWith Mask Max MaxBy MaxMinByK Md5 Measure Median
    MicrosToTimestamp MillisToTimestamp Min MinBy Minute MinutesOfTime Mode Month MonthName MonthsBetween
    MultiGetJsonObject Multiply MultiplyDTInterval MultiplyInterval MultiplyYMInterval Murmur3Hash NTile NaNvl
    NamedLambdaVariable NanosToTimestamp NextDay NoOp Not NotLikeAll NotLikeAny NthValue NullIf NullIfResult
    NullIfZero Nvl Nvl2 OctetLength Or Overlay ParseJson ParseToDate ParseToTimestamp ParseUrl PercentRank
    Percentile PercentileCont PercentileDisc Pi Pmod PosExplode Pow PreciseTimestampConversion Product PythonUDF
    Quarter Quote RLike RaiseError Rank RegExpCount RegExpExtract RegExpExtractAll RegExpInStr RegExpReplace
    RegExpSubStr RegrAvgX RegrAvgY RegrCount RegrIntercept RegrR2 RegrReplacement RegrSXX RegrSXY RegrSYY RegrSlope
    Remainder ResolvedCollation Reverse Right Rint Rollup Round RoundCeil RoundFloor RowNumber SQLFunctionExpression
    SQLScalarFunction ST_AsBinary ST_GeogFromWKB ST_GeomFromWKB ST_SetSrid ST_Srid ScalaUDF SchemaOfAvro SchemaOfCsv
    SchemaOfJson SchemaOfVariant SchemaOfVariantAgg SchemaOfXml Sec Second SecondWithFraction
    SecondWithFractionNanos SecondsOfTime SecondsOfTimeWithFraction SecondsToTimestamp SemiStructuredExtract
    Sentences Sequence Sha1 Sha2 ShiftLeft ShiftRight ShiftRightUnsigned Signum Sin Sinh Size Skewness Slice
    SortArray SortOrder SoundEx SparkVersion SpecifiedWindowFrame SplitPart Sqrt Stack StartsWith StaticInvoke
    StddevPop StddevSamp StringDecode StringInstr StringInstrWithOccurrence StringLPad StringLocate StringRPad
    StringRepeat StringReplace StringSpace StringSplit StringSplitSQL StringToMap StringTranslate StringTrim
    StringTrimBoth StringTrimLeft StringTrimRight StructsToCsv StructsToJson StructsToXml Substring SubstringIndex
    Subtract SubtractDates SubtractTimes SubtractTimestamps Sum Tan Tanh ThetaDifference ThetaIntersection
    ThetaIntersectionAgg ThetaSketchAgg ThetaSketchEstimate ThetaUnion ThetaUnionAgg TimeAdd TimeAddInterval
    TimeBucket TimeDiff TimeFromMicros TimeFromMillis TimeFromSeconds TimeToMicros TimeToMillis TimeToSeconds
    TimeTrunc TimestampAdd TimestampAddInterval TimestampAddYMInterval TimestampDiff ToAvro ToBinary ToCharacter
    ToDegrees ToNumber ToPrettyString ToProtobuf ToRadians ToTime ToUTCTimestamp ToUnixTimestamp ToVariantObject
    TransformKeys TransformValues TruncDate TruncTimestamp TryAdd TryAesDecrypt TryDivide TryElementAt TryEval
    TryMakeInterval TryMakeTimestamp TryMakeTimestampFromDateTime TryMod TryMultiply TryParseUrl TrySubtract
    TryToBinary TryToNumber TryUrlDecode TryValidateUTF8 TupleDifferenceDouble TupleDifferenceInteger
    TupleDifferenceThetaDouble TupleDifferenceThetaInteger TupleIntersectionAggDouble TupleIntersectionAggInteger
    TupleIntersectionDouble TupleIntersectionInteger TupleIntersectionThetaDouble TupleIntersectionThetaInteger
    TupleSketchAggDouble TupleSketchAggInteger TupleSketchEstimateDouble TupleSketchEstimateInteger
    TupleSketchSummaryDouble TupleSketchSummaryInteger TupleSketchThetaDouble TupleSketchThetaInteger
    TupleUnionAggDouble TupleUnionAggInteger TupleUnionDouble TupleUnionInteger TupleUnionThetaDouble
    TupleUnionThetaInteger TypeOf UnBase32 UnBase64 UnaryMinus UnaryPositive UnboundedFollowing UnboundedPreceding
    Unhex UnixDate UnixMicros UnixMillis UnixNanos UnixSeconds UnixTimestamp Unnest UnscaledValue UnspecifiedFrame
    UnwrapUDT UnwrapVariantCastError UpCast UpdateFields Upper UrlDecode UrlEncode V2Aggregator ValidateUTF8
    VariancePop VarianceSamp VariantArrayAppend VariantDelete VariantExplode VariantGet VariantInsert VariantSet
    VariantStripNulls VectorAvg VectorCosineSimilarity VectorInnerProduct VectorL2Distance VectorNorm
    VectorNormalize VectorSum WeekDay WeekOfYear WidthBucket WindowExpression WindowSpecDefinition With WithField
    XPathBoolean XPathDouble XPathFloat XPathInt XPathList XPathLong XPathShort XPathString XmlToStructs XxHash64
    Year YearOfWeek ZeroIfNull ZipWith
    """.split()
)
# classes of expressions that are not row-wise, with the names that users know
NOT_ROW_WISE = {
    "CallMethodViaReflection": "reflect() or java_method()",
    "TryReflect": "try_reflect()",
    "Rand": "rand()",
    "Randn": "randn()",
    "RandStr": "randstr()",
    "Uniform": "uniform()",
    "Uuid": "uuid()",
    "Shuffle": "shuffle()",
    "CurrentTimestamp": "current_timestamp()",
    "CurrentTimestampLike": "current_timestamp()",
    "CurrentTimestampNanos": "current_timestamp()",
    "CurrentBatchTimestamp": "current_timestamp()",
    "Now": "now()",
    "CurrentDate": "current_date()",
    "CurrentTime": "current_time()",
    "LocalTimestamp": "localtimestamp()",
    "LocalTimestampNanos": "localtimestamp()",
    "MonotonicallyIncreasingID": "monotonically_increasing_id()",
    "SparkPartitionID": "spark_partition_id()",
    "InputFileName": "input_file_name()",
    "InputFileBlockStart": "input_file_block_start()",
    "InputFileBlockLength": "input_file_block_length()",
    "VariableReference": "a session variable",
    "ScalarSubquery": "a subquery",
    "Exists": "a subquery (EXISTS)",
    "ListQuery": "a subquery (IN)",
    "InSubquery": "a subquery (IN)",
    "LateralSubquery": "a lateral subquery",
}
