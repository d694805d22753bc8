"""Parse Spark's analyzed plan into a tree of nodes, and list the expression classes that are row-wise.

The plan is read from JSON or from text. Spark Connect returns only text.

A row-wise expression is deterministic and depends only on its row. The lists are for Spark 4.0 to 4.3. Aggregates and
window functions are in `ROW_WISE` too, because the plan node that contains them decides whether they are allowed. New
expressions of later Spark versions are rejected until their classes are added here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_LINE = re.compile(r"^(?P<depth>(?:(?:: {2}| {3})*(?:\+- |:- ))?)(?P<kind>[A-Z]\w*)(?P<rest>.*)$")
_CTE = re.compile(r"[ ,]+(\d+)")
_JOIN = re.compile(r"(Inner|Cross|LeftOuter|RightOuter|FullOuter|LeftSemi|LeftAnti|\w+)")
_ALIAS = re.compile(r"\s*(\S+)")
_VIEW = re.compile(r"\s*\(`([^`]+)`")


@dataclass(frozen=True)
class Node:
    """A node of a plan. Fields that do not apply to the node are empty.

    Args:
        kind: The name of Spark's class for this node, without the package.
        children: The nodes directly below this node.
        join: The type of a Join, such as "LeftOuter".
        view: The name of a temporary view.
        alias: The name of a SubqueryAlias.
        cte: The id of the CTE that the node defines or reads. -1 for all other nodes.
        expressions: The expressions of the node as JSON objects. Empty over Spark Connect.
        fields: All fields of the node's JSON object. Empty over Spark Connect.
    """

    kind: str
    children: tuple[Node, ...] = ()
    join: str = ""
    view: str = ""
    alias: str = ""
    cte: int = -1
    expressions: tuple[Mapping[str, Any], ...] = ()
    fields: Mapping[str, Any] = field(default_factory=dict)

    def walk(self) -> Iterator[Node]:
        """Yield this node and all nodes below it."""
        yield self
        for child in self.children:
            yield from child.walk()


def parse_plan_json(text: str) -> Node:
    """Parse a plan from JSON: a list of nodes in pre-order, each with its number of children."""
    entries = iter(json.loads(text))

    def node() -> Node:
        fields: dict[str, Any] = next(entries)
        kind = read_class_name(fields)
        view = fields.get("desc", {}) if kind == "View" else {}
        identifier = view.get("identifier", {}) if isinstance(view, dict) else {}
        temporary = bool(fields.get("isTempView")) and "database" not in identifier
        return Node(
            kind,
            tuple(node() for _ in range(fields["num-children"])),
            _join_kind(fields.get("joinType", "")),
            str(identifier.get("table", "")) if temporary else "",
            str(fields.get("identifier", {}).get("name", "")) if kind == "SubqueryAlias" else "",
            int(fields.get("cteId", fields.get("id", -1))) if kind.startswith("CTERelation") else -1,
            tuple(e for key, value in fields.items() if key != "desc" for e in _classes(value)),
            fields,
        )

    return node()


def parse_text(text: str) -> Node:
    """Parse a plan from the output of EXPLAIN, which indents each level by three characters.

    Lines that do not describe a node are skipped.
    """
    plan = text[text.find("\nWithCTE\n") + 1 :]  # skips the list of columns before it
    lines = [match for line in plan.splitlines() if (match := _LINE.match(line))]
    root = _Draft(-1, "Plan", "")
    path = [root]
    for match in lines:
        depth = len(match["depth"]) // 3
        while path[-1].depth >= depth:
            path.pop()
        path[-1].children.append(draft := _Draft(depth, match["kind"], match["rest"]))
        path.append(draft)
    return root.children[0].node() if len(root.children) == 1 else root.node()


@dataclass
class _Draft:
    depth: int
    kind: str
    rest: str
    children: list[_Draft] = field(default_factory=list)

    def node(self) -> Node:
        def first(pattern: re.Pattern[str], kind: str) -> str:
            match = pattern.search(self.rest) if self.kind.startswith(kind) else None
            return match[1] if match else ""

        return Node(
            self.kind,
            tuple(child.node() for child in self.children),
            join=first(_JOIN, "Join"),
            view=first(_VIEW, "View"),
            alias=first(_ALIAS, "SubqueryAlias"),
            cte=int(first(_CTE, "CTERelation") or -1),
        )


def read_arguments(expressions: Sequence[Mapping[str, Any]], index: int) -> list[tuple[Mapping[str, Any], ...]]:
    """Return the arguments of the expression at `index`, each as a tuple of its expressions in pre-order.

    `expressions`: a forest of expressions in pre-order.
    """
    children, end = list[tuple[Mapping[str, Any], ...]](), index + 1
    for _ in range(expressions[index]["num-children"]):
        start, open_ones = end, 1
        while open_ones:
            open_ones += expressions[end]["num-children"] - 1
            end += 1
        children.append(tuple(expressions[start:end]))
    return children


def read_class_name(fields: Mapping[str, Any]) -> str:
    """Return the class name of a node or an expression, without the package."""
    return str(fields.get("class", "")).rsplit(".", 1)[-1].rstrip("$")


def _join_kind(value: Any) -> str:
    """Return the join type, which Spark writes as an object (`{"object": "….LeftOuter$"}`) or as a string."""
    return str(value.get("object", "") if isinstance(value, dict) else value).rsplit(".", 1)[-1].strip("$")


def _classes(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield all expressions nested in a JSON value of a plan, in pre-order."""
    if isinstance(value, list):
        for item in value:
            yield from _classes(item)
    elif isinstance(value, dict):
        if "class" in value:
            yield value
        for item in value.values():
            yield from _classes(item)


# -- row-wise expressions ------------------------------------------------------------------------------------------------


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
