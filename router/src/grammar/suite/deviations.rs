//! Where what is accepted differs from the suite: values by file, schema and description, with the reason.

/// Values that the suite calls invalid and that are possible. Formats are optional, and here not known to the last rule.
pub const ALLOWED: [(&str, &[&str]); 3] = [
    (
        "a calendar is not kept",
        &[
            "optional/format/date: validation of date strings: a invalid date string with 29 days in February (normal)",
            "optional/format/date: validation of date strings: 2021 is not a leap year",
        ],
    ),
    (
        "leap seconds come at any minute",
        &[
            "optional/format/date-time: validation of date-time strings: an invalid date-time with leap second on a wrong minute, UTC",
            "optional/format/date-time: validation of date-time strings: an invalid date-time with leap second on a wrong hour, UTC",
            "optional/format/time: validation of time strings: invalid leap second, Zulu (wrong hour)",
            "optional/format/time: validation of time strings: invalid leap second, Zulu (wrong minute)",
            "optional/format/time: validation of time strings: invalid leap second, zero time-offset (wrong hour)",
            "optional/format/time: validation of time strings: invalid leap second, zero time-offset (wrong minute)",
            "optional/format/time: validation of time strings: invalid leap second, positive time-offset (wrong hour)",
            "optional/format/time: validation of time strings: invalid leap second, positive time-offset (wrong minute)",
            "optional/format/time: validation of time strings: invalid leap second, negative time-offset (wrong hour)",
            "optional/format/time: validation of time strings: invalid leap second, negative time-offset (wrong minute)",
            "optional/format/time: validation of time strings: an invalid time string with invalid leap second (wrong hour)",
            "optional/format/time: validation of time strings: an invalid time string with invalid leap second (wrong minute)",
        ],
    ),
    (
        "\\S matches the zero-width no-break space, as \\s does not",
        &[
            "optional/ecmascript-regex: ECMA 262 \\S matches everything but whitespace: zero-width whitespace does not match",
        ],
    ),
];

/// Values that the suite calls valid and that are not produced: an output may be held to more than was asked for.
pub const MISSING: [(&str, &[&str]); 6] = [
    (
        "properties come in the order of the schema",
        &[
            "allOf: allOf: allOf",
            "allOf: allOf with base schema: valid",
            "const: const with object: same object with different property order is valid",
        ],
    ),
    (
        "a number is written as in the schema",
        &[
            "const: const with 0 does not match other zero-like types: float zero is valid",
            "const: const with 1 does not match true: float one is valid",
            "const: const with -2.0 matches integer and float types: float -2.0 is valid",
            "const: float and integers are equal up to 64-bit representation limits: float is valid",
            "enum: enum with 0 does not match false: float zero is valid",
            "enum: enum with [0] does not match [false]: [0.0] is valid",
            "enum: enum with 1 does not match true: float one is valid",
            "enum: enum with [1] does not match [true]: [1.0] is valid",
        ],
    ),
    (
        "an integer has no fraction, no exponent",
        &[
            "optional/bignum: integer: a bignum is an integer",
            "optional/bignum: integer: a negative bignum is an integer",
            "optional/float-overflow: all integers are multiples of 0.5, if overflow is handled: valid if optional overflow handling is implemented",
            "type: integer type matches integers: a float with zero fractional part is an integer",
        ],
    ),
    (
        "a format is obeyed, not only noted",
        &[
            "format: email format: invalid email string is only an annotation by default",
            "format: ipv4 format: invalid ipv4 string is only an annotation by default",
            "format: ipv6 format: invalid ipv6 string is only an annotation by default",
            "format: hostname format: invalid hostname string is only an annotation by default",
            "format: date format: invalid date string is only an annotation by default",
            "format: date-time format: invalid date-time string is only an annotation by default",
            "format: time format: invalid time string is only an annotation by default",
            "format: uri format: invalid uri string is only an annotation by default",
            "format: uuid format: invalid uuid string is only an annotation by default",
            "format: duration format: invalid duration string is only an annotation by default",
        ],
    ),
    (
        "rare forms of formats",
        &[
            "optional/format/email: validation of e-mail addresses: a quoted string with a space in the local part is valid",
            "optional/format/email: validation of e-mail addresses: a quoted string with a double dot in the local part is valid",
            "optional/format/email: validation of e-mail addresses: a quoted string with a @ in the local part is valid",
            "optional/format/email: validation of e-mail addresses: an IPv6-address-literal after the @ is valid",
            "optional/format/ipv6: validation of IPv6 addresses: mixed format with the ipv4 section as decimal octets",
            "optional/format/ipv6: validation of IPv6 addresses: mixed format with double colons between the sections",
            "optional/format/ipv6: validation of IPv6 addresses: mixed format with leading double colons (ipv4-mapped ipv6 address)",
            "optional/format/ipv6: validation of IPv6 addresses: a long valid ipv6",
        ],
    ),
    (
        "\\s does not match the zero-width no-break space",
        &["optional/ecmascript-regex: ECMA 262 \\s matches whitespace: zero-width whitespace matches"],
    ),
];
