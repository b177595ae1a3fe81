//! Measures what a JSON schema costs, before it is compiled. llguidance follows references by recursion and copies the
//! target of a reference that has siblings, so a small text could use up the stack or the memory.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::limits::MAX_JOINED;
use super::multiples::{self, Multiple};

/// Most levels of subschemas within each other, references followed.
const MAX_LEVELS: usize = 1000;
/// Most subschemas, those copied for references included.
const MAX_SUBSCHEMAS: usize = 10_000;
/// Most entries of one of the keywords [`ALTERNATIVES`], all of which are open at once.
const MAX_ALTERNATIVES: usize = 500;
/// Most entries of one list that contain the list again. All of them are open at every level of nesting, and the time for
/// a token grows with the cube of their number: 20 ms for 100 of them, and a second for 400.
const MAX_RECURSIVE: usize = 100;
const ALTERNATIVES: [&str; 6] = ["properties", "patternProperties", "anyOf", "oneOf", "allOf", "prefixItems"];
/// Keywords that constrain nothing: beside these a reference is only followed, not copied.
const ANNOTATIONS: [&str; 12] = [
    "$defs",
    "definitions",
    "$schema",
    "$id",
    "$comment",
    "$anchor",
    "title",
    "description",
    "default",
    "examples",
    "readOnly",
    "writeOnly",
];

/// Refuses a schema that is too deep or too large; the error names the keyword at fault, if one is.
pub(super) fn check_size(schema: &Value) -> Result<(), String> {
    let mut measure =
        Measure { root: schema, targets: HashMap::new(), depth: 0, levels: 0, subschemas: 0, multiples: 0 };
    let root = measure.visit(schema, 0)?;
    measure.add(&root)
}

/// The size of one subschema.
#[derive(Debug, Clone, Copy, Default)]
struct Size {
    /// Levels of subschemas in it.
    height: usize,
    /// Number of subschemas in it, with copies.
    subschemas: usize,
    /// Most patterns that one string within it may have to match at once.
    patterns: usize,
    /// The costliest `multipleOf` of one number within it.
    multiple: Multiple,
    /// The total cost of the `multipleOf` keywords of all numbers within it, with copies.
    multiples: u64,
    /// The outermost target being measured that it refers back to, by its depth among them.
    back: Option<usize>,
    /// For a list: the number of entries that refer back.
    num_recursive: usize,
}

struct Measure<'a> {
    root: &'a Value,
    /// Sizes of the targets of references; while a target is being measured, its depth among those that are.
    targets: HashMap<&'a str, Result<Size, usize>>,
    /// Number of targets being measured, each within the one before.
    depth: usize,
    levels: usize,
    subschemas: usize,
    multiples: u64,
}

impl<'a> Measure<'a> {
    /// Adds a subschema that is compiled by itself. The order in which llguidance follows references is not known, so
    /// the levels of all of them are added.
    fn add(&mut self, size: &Size) -> Result<(), String> {
        self.levels += size.height;
        self.subschemas += size.subschemas;
        self.multiples = self.multiples.saturating_add(size.multiples);
        check_levels(self.levels)?;
        multiples::check(self.multiples)?;
        check_subschemas(self.subschemas)
    }

    fn visit(&mut self, value: &'a Value, depth: usize) -> Result<Size, String> {
        check_levels(depth)?;
        match value {
            Value::Object(fields) => self.visit_object(fields, depth),
            Value::Array(items) => {
                let size = self.visit_all(items.iter(), depth)?;
                check_recursive(size.num_recursive)?;
                Ok(size)
            }
            _ => Ok(Size::default()),
        }
    }

    fn visit_object(&mut self, fields: &'a Map<String, Value>, depth: usize) -> Result<Size, String> {
        check_alternatives(fields)?;
        let others = fields.iter().filter(|(keyword, _)| *keyword != "allOf").map(|(_, value)| value);
        let mut size = self.visit_all(others, depth + 1)?;
        size.patterns += own_patterns(fields);
        let mut multiple = Multiple::own(fields)?;
        if let Some(Value::String(reference)) = fields.get("$ref") {
            let target = self.follow(reference, depth + 1)?;
            size.patterns += target.patterns;
            size.back = outermost(size.back, target.back);
            multiple = multiple.joined(target.multiple)?;
            // In an applicator or beside other keywords the target is copied.
            size.subschemas += if is_alone(fields) { 0 } else { target.subschemas };
        }
        if let Some(Value::Array(items)) = fields.get("allOf") {
            let all = self.visit_joined(items, depth + 1)?;
            size.height = size.height.max(all.height);
            size.patterns += all.patterns;
            size.back = outermost(size.back, all.back);
            multiple = multiple.joined(all.multiple)?;
            size.multiples = size.multiples.saturating_add(all.multiples);
            size.subschemas += all.subschemas + self.copied(items, depth + 1)?;
        }
        for keyword in ["anyOf", "oneOf"] {
            if let (Some(Value::Array(items)), false) = (fields.get(keyword), is_alone(fields)) {
                size.subschemas += self.copied(items, depth + 1)?;
            }
        }
        size.multiple = multiple.joined(size.multiple)?;
        if multiple.cost() > 1 {
            size.multiples = size.multiples.saturating_add(size.multiple.cost());
        }
        check_subschemas(size.subschemas + 1)?;
        multiples::check(size.multiples)?;
        check_patterns(size.patterns)?;
        if has_required(fields) {
            size.back = None; // a property that has to come tells it from other entries of a list
        }
        Ok(Size { height: size.height + 1, subschemas: size.subschemas + 1, ..size })
    }

    fn visit_all(&mut self, values: impl Iterator<Item = &'a Value>, depth: usize) -> Result<Size, String> {
        let mut all = Size::default();
        for value in values {
            let size = self.visit(value, depth)?;
            all.height = all.height.max(size.height);
            all.patterns = all.patterns.max(size.patterns);
            all.multiple = all.multiple.or(size.multiple);
            all.multiples = all.multiples.saturating_add(size.multiples);
            all.subschemas += size.subschemas;
            all.num_recursive += usize::from(size.back.is_some());
            all.back = outermost(all.back, size.back);
        }
        check_subschemas(all.subschemas)?;
        Ok(all)
    }

    /// Subschemas in the targets of the references among these, which are merged with their siblings.
    fn copied(&mut self, items: &'a [Value], depth: usize) -> Result<usize, String> {
        let mut subschemas = 0;
        for reference in items.iter().filter_map(|item| item["$ref"].as_str()) {
            subschemas += self.follow(reference, depth)?.subschemas;
        }
        Ok(subschemas)
    }

    /// The size of `allOf`: a string may have to match the patterns of every entry.
    fn visit_joined(&mut self, items: &'a [Value], depth: usize) -> Result<Size, String> {
        check_levels(depth)?;
        let mut all = Size::default();
        for item in items {
            let size = self.visit(item, depth + 1)?;
            all.height = all.height.max(size.height);
            all.subschemas += size.subschemas;
            all.patterns += size.patterns;
            all.multiple = all.multiple.joined(size.multiple)?;
            all.multiples = all.multiples.saturating_add(size.multiples);
            all.back = outermost(all.back, size.back);
        }
        check_subschemas(all.subschemas)?;
        Ok(all)
    }

    /// Measures a target once. A target that is being measured contains itself, and is not copied into itself.
    fn follow(&mut self, reference: &'a str, depth: usize) -> Result<Size, String> {
        match self.targets.get(reference) {
            Some(Ok(known)) => return Ok(*known),
            Some(Err(depth)) => return Ok(Size { back: Some(*depth), ..Size::default() }),
            None => {}
        }
        let own_depth = self.depth;
        self.targets.insert(reference, Err(own_depth));
        self.depth += 1;
        // A target that is named otherwise (by `$id`, by `$anchor`) is in the same document.
        let pointer = reference.strip_prefix('#').and_then(|pointer| self.root.pointer(pointer));
        let size = self.visit(pointer.unwrap_or(self.root), depth)?;
        self.depth = own_depth;
        // To whom it is a part of, what refers back to the target itself is no reference back.
        let size = Size { back: size.back.filter(|depth| *depth < own_depth), ..size };
        self.targets.insert(reference, Ok(size));
        self.add(&size)?;
        Ok(size)
    }
}

/// The less deep of two.
fn outermost(one: Option<usize>, other: Option<usize>) -> Option<usize> {
    [one, other].into_iter().flatten().min()
}

fn has_required(fields: &Map<String, Value>) -> bool {
    fields.get("required").and_then(Value::as_array).is_some_and(|names| !names.is_empty())
}

/// Patterns that a subschema itself has: `patternProperties` for names of properties, `pattern` and `format` for its
/// value.
fn own_patterns(fields: &Map<String, Value>) -> usize {
    let named = fields.get("patternProperties").and_then(Value::as_object).map_or(0, Map::len);
    named + ["pattern", "format"].iter().filter(|keyword| fields.contains_key(**keyword)).count()
}

/// Whether only one keyword of a subschema constrains anything.
fn is_alone(fields: &Map<String, Value>) -> bool {
    fields.keys().filter(|key| !ANNOTATIONS.contains(&key.as_str())).count() == 1
}

fn check_alternatives(fields: &Map<String, Value>) -> Result<(), String> {
    let entries = |keyword: &str| match fields.get(keyword) {
        Some(Value::Array(items)) => items.len(),
        Some(Value::Object(entries)) => entries.len(),
        _ => 0,
    };
    let nested = |value: &&Value| value.is_array() || value.is_object();
    let nested_enum =
        fields.get("enum").and_then(Value::as_array).map_or(0, |items| items.iter().filter(nested).count());
    let counts = ALTERNATIVES.map(|keyword| (keyword, entries(keyword)));
    let counts = counts.into_iter().chain([("objects and arrays in `enum`", nested_enum)]);
    match counts.into_iter().find(|(_, count)| *count > MAX_ALTERNATIVES) {
        Some((keyword, count)) => {
            let keyword = if keyword.contains(' ') { keyword.to_owned() } else { format!("`{keyword}`") };
            Err(format!("{keyword} may have at most {MAX_ALTERNATIVES} entries. Given: {count}"))
        }
        None => Ok(()),
    }
}

fn check_levels(levels: usize) -> Result<(), String> {
    if levels > MAX_LEVELS {
        return Err(format!("its subschemas are nested more than {MAX_LEVELS} deep, `$ref` followed"));
    }
    Ok(())
}

fn check_subschemas(count: usize) -> Result<(), String> {
    if count > MAX_SUBSCHEMAS {
        return Err(format!("it has more than {MAX_SUBSCHEMAS} subschemas, with copies for `$ref`"));
    }
    Ok(())
}

fn check_recursive(count: usize) -> Result<(), String> {
    if count > MAX_RECURSIVE {
        return Err(format!(
            "at most {MAX_RECURSIVE} entries of a list like `anyOf` may contain that list again without a `required` \
             property. Given: {count}"
        ));
    }
    Ok(())
}

fn check_patterns(count: usize) -> Result<(), String> {
    if count > MAX_JOINED {
        return Err(format!(
            "a string may have to match at most {MAX_JOINED} patterns at once, by `allOf`, `$ref` and \
             `patternProperties`. Given: {count}"
        ));
    }
    Ok(())
}
