r"""Lexer for SQL, which splits text into words, strings, quoted names and signs as Spark does. It skips comments.

SELECT n, `a b` -- note          word SELECT · word n · sign , · name `a b`
DATE 'today'                     word DATE · text 'today'

sqlglot's tokenizer is not used. It reads GROUP BY as one token, splits 1L and 'it''s' into several tokens, and ignores a
`\` that continues a comment on the next line. Importing it would also add 0.1 s to each read of a schema.

The lists of functions and keywords are those of Spark SQL. The function names come from `SHOW FUNCTIONS` in Spark 4.3.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

_SPACE = re.compile(r"\s+|--(?:\\\n|[^\r\n])*")
_TOKEN = re.compile(
    r"""(?P<text>[rR]'[^']*'|[rR]"[^"]*"|'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")"""
    r"""|(?P<name>`(?:[^`]|``)*`)|(?P<hint>/\*\+|\*/)|(?P<word>\w+)|(?P<sign>.)""",
    re.DOTALL,
)
_TIMES = ("DATE", "TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ", "TIME")
_CLOCK = re.compile(r"\s*(now|today|tomorrow|yesterday)\b", re.IGNORECASE)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-3][0-7]{2})|(.))", re.DOTALL)


class SqlLexError(Exception):
    """The lexer cannot split the SQL. `open_quote`: whether the cause is an unclosed quote, an error in Spark too."""

    def __init__(self, line: str, open_quote: bool = False) -> None:
        super().__init__(line)
        self.open_quote = open_quote


@dataclass(frozen=True)
class Token:
    """Token of a SQL string. `kind`: word, text, name, sign or hint. `start`, `end`: its position in characters."""

    kind: str
    text: str
    start: int
    end: int

    def is_word(self, *words: str) -> bool:
        """Return whether the token is one of `words`, given in upper case. Ignores case. Quoted names are not words."""
        return self.kind == "word" and self.text.upper() in words


def tokenize(sql: str) -> list[Token]:
    """Return the tokens of a SQL string. Raises SqlLexError if it cannot be split."""
    parts, position = list[Token](), 0
    while position < len(sql):
        space = _SPACE.match(sql, position)
        if space:
            position = space.end()
        elif sql.startswith("/*", position) and not sql.startswith("/*+", position):
            position = _comment(sql, position)
        else:
            match = _TOKEN.match(sql, position)
            assert match is not None
            kind = str(match.lastgroup)
            if kind == "sign" and match[0] in "'\"`":
                raise SqlLexError("has an unclosed quote; close it", open_quote=True)
            if kind == "sign" and match[0] == "$":
                raise SqlLexError("has a dollar-quoted string")
            parts.append(Token(kind, match[0], position, match.end()))
            position = match.end()
    return parts


def strip_semicolon(sql: str) -> str:
    """Remove `;` and comments from the end of a query. SQL that the lexer cannot split is returned unchanged."""
    try:
        parts = tokenize(sql)
    except SqlLexError:
        return sql
    while parts and parts[-1].text == ";":
        parts.pop()
    return sql[: parts[-1].end] if parts else ""


def find_current_time_literals(sql: str) -> list[str]:
    """Return the literals that depend on the clock, such as `DATE 'today'`; none if the lexer cannot split the SQL."""
    try:
        parts = tokenize(sql)
    except SqlLexError:
        return []
    times = ((a.text.upper(), b) for a, b in pairwise(parts) if a.is_word(*_TIMES) and b.kind == "text")
    return [f"{word} '{value.strip()}'" for word, text in times if uses_current_time(value := _value(text.text))]


def uses_current_time(text: str) -> bool:
    """Return whether a date or timestamp literal depends on the clock: "now", "today" and similar."""
    return bool(_CLOCK.match(text))


def _value(text: str) -> str:
    """Return the value of a string literal, without quotes and escape sequences."""
    if text[0] in "rR":
        return text[2:-1]

    def escaped(match: re.Match[str]) -> str:
        four, eight, octal, other = match.groups()
        number = int(four or eight or "0", 16) or (int(octal, 8) if octal else 0)
        return chr(number) if number and number <= 0x10FFFF else {"n": "\n", "t": "\t"}.get(other or "", other or "")

    return _ESCAPE.sub(escaped, text[1:-1])


def _comment(sql: str, position: int) -> int:
    """Return the position after a `/* */` comment that begins at `position`. Comments may be nested."""
    depth = 0
    for match in re.compile(r"/\*|\*/").finditer(sql, position):
        depth += 1 if match[0] == "/*" else -1
        if not depth:
            return match.end()
    raise SqlLexError("has an unclosed comment; close it")


# -- functions and keywords ----------------------------------------------------------------------------------------------


FUNCTIONS = frozenset(
    """
    abs acos acosh add_months aes_decrypt aes_encrypt aggregate and any any_value approx_count_distinct
    approx_percentile approx_top_k approx_top_k_accumulate approx_top_k_combine approx_top_k_estimate array array_agg
    array_append array_compact array_contains array_distinct array_except array_insert array_intersect array_join
    array_max array_min array_position array_prepend array_remove array_repeat array_size array_sort array_union
    arrays_overlap arrays_zip ascii asin asinh assert_true atan atan2 atanh avg base64 between bigint bin binary
    bit_and bit_count bit_get bit_length bit_or bit_xor bitmap_and_agg bitmap_bit_position bitmap_bucket_number
    bitmap_construct_agg bitmap_count bitmap_or_agg bool_and bool_or boolean bround btrim cardinality case cast cbrt
    ceil ceiling char char_length character_length chr coalesce collate collation collations collect_list collect_set
    collect_union concat concat_ws contains conv convert_timezone corr cos cosh cot count count_if count_min_sketch
    counter_diff covar_pop covar_samp crc32 csc cume_dist curdate current_catalog current_database current_date
    current_path current_schema current_time current_timestamp current_timezone current_user date date_add date_diff
    date_format date_from_unix_date date_part date_sub date_trunc dateadd datediff datepart day dayname dayofmonth
    dayofweek dayofyear decimal decode degrees dense_rank div double e element_at elt encode endswith equal_null every
    exists exp explode explode_outer expm1 extract factorial filter find_in_set first first_value flatten float floor
    forall format_number format_string from_avro from_base32 from_csv from_json from_protobuf from_unixtime
    from_utc_timestamp from_xml get get_json_object getbit greatest grouping grouping_id hash hex histogram_numeric
    hll_sketch_agg hll_sketch_estimate hll_union hll_union_agg hmac hour hypot identifier if ifnull ilike in initcap
    inline inline_outer input_file_block_length input_file_block_start input_file_name instr int is_valid_utf8
    is_valid_variant is_variant_null isnan isnotnull isnull jaro_winkler_similarity java_method json_array_length
    json_object_keys json_tuple kll_merge_agg_bigint kll_merge_agg_double kll_merge_agg_float kll_sketch_agg_bigint
    kll_sketch_agg_double kll_sketch_agg_float kll_sketch_get_n_bigint kll_sketch_get_n_double kll_sketch_get_n_float
    kll_sketch_get_quantile_bigint kll_sketch_get_quantile_double kll_sketch_get_quantile_float
    kll_sketch_get_rank_bigint kll_sketch_get_rank_double kll_sketch_get_rank_float kll_sketch_merge_bigint
    kll_sketch_merge_double kll_sketch_merge_float kll_sketch_to_string_bigint kll_sketch_to_string_double
    kll_sketch_to_string_float kurtosis lag last last_day last_value lcase lead least left len length levenshtein like
    listagg ln localtime localtimestamp locate log log10 log1p log2 lower lpad ltrim luhn_check make_date
    make_dt_interval make_interval make_time make_timestamp make_timestamp_ltz make_timestamp_ntz make_valid_utf8
    make_ym_interval map map_concat map_contains_key map_entries map_filter map_from_arrays map_from_entries map_keys
    map_values map_zip_with mask max max_by md5 mean measure median min min_by minute mod mode
    monotonically_increasing_id month monthname months_between named_struct nanvl negative next_day not now nth_value
    ntile nullif nullifzero nvl nvl2 octet_length or overlay parse_json parse_url percent_rank percentile
    percentile_approx percentile_cont percentile_disc pi pmod posexplode posexplode_outer position positive pow power
    printf python_worker_logs quarter quote radians raise_error rand randn random randstr range rank reduce reflect
    regexp regexp_count regexp_extract regexp_extract_all regexp_instr regexp_like regexp_replace regexp_substr
    regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy repeat replace reverse
    right rint rlike round row_number rpad rtrim schema_of_avro schema_of_csv schema_of_json schema_of_variant
    schema_of_variant_agg schema_of_xml sec second sentences sequence session_user session_window sha sha1 sha2
    shiftleft shiftright shiftrightunsigned shuffle sign signum sin sinh size skewness slice smallint some sort_array
    soundex space spark_partition_id split split_part sql_keywords sqrt st_asbinary st_geogfromwkb st_geomfromwkb
    st_setsrid st_srid stack startswith std stddev stddev_pop stddev_samp str_to_map string string_agg struct substr
    substring substring_index sum tan tanh theta_difference theta_intersection theta_intersection_agg theta_sketch_agg
    theta_sketch_estimate theta_union theta_union_agg time time_bucket time_diff time_from_micros time_from_millis
    time_from_seconds time_to_micros time_to_millis time_to_seconds time_trunc timestamp timestamp_micros
    timestamp_millis timestamp_nanos timestamp_seconds tinyint to_avro to_base32 to_binary to_char to_csv to_date
    to_json to_number to_protobuf to_time to_timestamp to_timestamp_ltz to_timestamp_ntz to_unix_timestamp
    to_utc_timestamp to_varchar to_variant_object to_xml transform transform_keys transform_values translate trim
    trunc try_add try_aes_decrypt try_avg try_divide try_element_at try_make_interval try_make_timestamp
    try_make_timestamp_ltz try_make_timestamp_ntz try_mod try_multiply try_parse_json try_parse_url try_reflect
    try_subtract try_sum try_to_binary try_to_date try_to_number try_to_time try_to_timestamp try_url_decode
    try_validate_utf8 try_variant_array_append try_variant_get try_variant_insert try_variant_set
    tuple_difference_double tuple_difference_integer tuple_difference_theta_double tuple_difference_theta_integer
    tuple_intersection_agg_double tuple_intersection_agg_integer tuple_intersection_double tuple_intersection_integer
    tuple_intersection_theta_double tuple_intersection_theta_integer tuple_sketch_agg_double tuple_sketch_agg_integer
    tuple_sketch_estimate_double tuple_sketch_estimate_integer tuple_sketch_summary_double
    tuple_sketch_summary_integer tuple_sketch_theta_double tuple_sketch_theta_integer tuple_union_agg_double
    tuple_union_agg_integer tuple_union_double tuple_union_integer tuple_union_theta_double tuple_union_theta_integer
    typeof ucase unbase64 unhex uniform unix_date unix_micros unix_millis unix_nanos unix_seconds unix_timestamp upper
    url_decode url_encode user uuid validate_utf8 var_pop var_samp variance variant_array_append variant_delete
    variant_explode variant_explode_outer variant_get variant_insert variant_set variant_strip_nulls vector_avg
    vector_cosine_similarity vector_inner_product vector_l2_distance vector_norm vector_normalize vector_sum version
    weekday weekofyear when width_bucket window window_time xpath xpath_boolean xpath_double xpath_float xpath_int
    xpath_long xpath_number xpath_short xpath_string xxhash64 year zeroifnull zip_with
    """.split()
)

# aggregates that sqlglot does not know (it knows the others as AggFunc), besides those with "_agg" in their names
AGGREGATES = frozenset("collect_union count_min_sketch every histogram_numeric mean some std try_avg try_sum".split())
WINDOW_FUNCTIONS = frozenset("CumeDist DenseRank Lag Lead NthValue Ntile PercentRank Rank RowNumber".split())
CHANGING = {  # functions whose result for the same row may change (classes of sqlglot, or names), as users spell them
    "Rand": "rand()",
    "Randn": "randn()",
    "Uuid": "uuid()",
    "CurrentTimestamp": "current_timestamp()",
    "CurrentDate": "current_date()",
    "CurrentTime": "current_time()",
    "Localtimestamp": "localtimestamp()",
    "now": "now()",
    "reflect": "reflect() or java_method()",
    "java_method": "reflect() or java_method()",
    "try_reflect": "try_reflect()",
    "Randstr": "randstr()",
    "randstr": "randstr()",
    "Uniform": "uniform()",
    "uniform": "uniform()",
    "curdate": "current_date()",
    "uuid": "uuid()",
    "Shuffle": "shuffle()",
    "shuffle": "shuffle()",
    "monotonically_increasing_id": "monotonically_increasing_id()",
    "spark_partition_id": "spark_partition_id()",
    "input_file_name": "input_file_name()",
}
WITHOUT_PARENTHESES = frozenset(
    """
    current_date current_timestamp current_time localtimestamp current_user user session_user current_catalog
    current_database current_schema current_path grouping__id
    """.split()
)
# functions that name their output columns themselves, and that sqlglot does not know as UDTF
GENERATORS = frozenset("JSONTuple json_tuple inline_outer variant_explode variant_explode_outer".split())
KEYWORDS = tuple(
    "SELECT FROM WHERE AND OR NOT IN LIKE BETWEEN CASE WHEN THEN ELSE END AS JOIN LEFT ON WITH UNION ALL DISTINCT "
    "GROUP HAVING ORDER LIMIT LATERAL VIEW USING CROSS INNER OUTER NULL IS CAST INTERVAL".split()
)
