//! Turns a regular expression of a text into one of the same text inside a JSON string. A quote, a backslash and a
//! control character become their escape, wherever the expression allows them; each has exactly one.

use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, Hir, HirKind, Literal, Repetition};
use serde_json::Value;

/// The characters that JSON writes as escapes.
const ESCAPED: [(char, char); 3] = [('\0', '\x1f'), ('"', '"'), ('\\', '\\')];

/// The expression for the inside of a JSON string; `flags` are those of Lark (`i`, `s` ..).
pub(super) fn quoted_pattern(pattern: &str, flags: &str) -> Result<String, String> {
    let with_flags = if flags.is_empty() { pattern.to_owned() } else { format!("(?{flags}){pattern}") };
    let parsed = regex_syntax::Parser::new().parse(&with_flags);
    let parsed = parsed.map_err(|error| format!("a regular expression is not valid: {}", kind(&error)))?;
    Ok(quoted(&parsed)?.to_string())
}

/// A text as it is written inside a JSON string.
pub(super) fn quoted_text(text: &str) -> String {
    let json = Value::from(text).to_string();
    json[1..json.len() - 1].to_owned()
}

/// The description of what is wrong with an expression, without the drawing that shows where.
fn kind(error: &regex_syntax::Error) -> String {
    match error {
        regex_syntax::Error::Parse(error) => error.kind().to_string(),
        regex_syntax::Error::Translate(error) => error.kind().to_string(),
        _ => "it cannot be read".to_owned(),
    }
}

fn quoted(parsed: &Hir) -> Result<Hir, String> {
    let all = |parts: &[Hir]| parts.iter().map(quoted).collect::<Result<Vec<_>, _>>();
    Ok(match parsed.kind() {
        HirKind::Empty => Hir::empty(),
        HirKind::Literal(Literal(bytes)) => {
            Hir::literal(quoted_text(&String::from_utf8_lossy(bytes)).into_bytes())
        }
        HirKind::Class(class) => quoted_class(class)?,
        HirKind::Look(_) => {
            return Err("anchors and word boundaries are not supported: the whole input matches".to_owned());
        }
        HirKind::Repetition(repetition) => {
            Hir::repetition(Repetition { sub: Box::new(quoted(&repetition.sub)?), ..repetition.clone() })
        }
        HirKind::Capture(capture) => quoted(&capture.sub)?,
        HirKind::Concat(parts) => Hir::concat(all(parts)?),
        HirKind::Alternation(parts) => Hir::alternation(all(parts)?),
    })
}

/// The characters of the class that need no escape, or the escapes of the others.
fn quoted_class(class: &Class) -> Result<Hir, String> {
    let mut plain = match class {
        Class::Unicode(class) => class.clone(),
        Class::Bytes(class) => class.to_unicode_class().ok_or("bytes that are no text are not supported")?,
    };
    let mut special = ClassUnicode::new(ESCAPED.map(|(first, last)| ClassUnicodeRange::new(first, last)));
    special.intersect(&plain);
    plain.difference(&special);
    let escapes = special.iter().flat_map(|range| range.start()..=range.end());
    let escapes = escapes.map(|c| Hir::literal(quoted_text(&c.to_string()).into_bytes()));
    let plain = Hir::class(Class::Unicode(plain));
    Ok(Hir::alternation(std::iter::once(plain).chain(escapes).collect()))
}
