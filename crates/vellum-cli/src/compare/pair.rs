//! Pairs the lines and the rows of figures of two outputs.

use serde_json::{Map, Value};

type Object = Map<String, Value>;

/// A part of both outputs, paired.
#[derive(Debug, PartialEq)]
pub enum Part {
    /// Pairs of lines. Where one output has fewer lines, its side is `None`.
    Lines(Vec<(Option<String>, Option<String>)>),
    /// Pairs of JSON objects, all with the same keys.
    Rows(Vec<(Object, Object)>),
}

enum Line {
    Text(String),
    Row(Object),
}

fn read(text: &str) -> Vec<Line> {
    let object = |line: &str| match serde_json::from_str(line) {
        Ok(Value::Object(object)) => Line::Row(object),
        _ => Line::Text(line.into()),
    };
    text.lines().map(object).collect()
}

fn alike(a: &Object, b: &Object) -> bool {
    a.len() == b.len() && a.keys().all(|key| b.contains_key(key))
}

/// Pairs the lines of two outputs in order: JSON objects with objects, and other lines with each
/// other. Groups consecutive objects with the same keys. Lines come first.
pub fn parts(a: &str, b: &str) -> Vec<Part> {
    let (mut lines, mut rows) = ((Vec::new(), Vec::new()), (Vec::new(), Vec::new()));
    for line in read(a) {
        match line {
            Line::Text(text) => lines.0.push(text),
            Line::Row(row) => rows.0.push(row),
        }
    }
    for line in read(b) {
        match line {
            Line::Text(text) => lines.1.push(text),
            Line::Row(row) => rows.1.push(row),
        }
    }
    // Objects without a partner are treated as lines.
    let matched = rows.0.iter().zip(&rows.1).take_while(|(a, b)| alike(a, b)).count();
    let left = |rows: Vec<Object>| rows.into_iter().skip(matched).map(|row| Value::Object(row).to_string());
    let mut groups: Vec<Vec<(Object, Object)>> = Vec::new();
    for (a, b) in rows.0.iter().zip(&rows.1).take(matched) {
        match groups.last_mut() {
            Some(group) if alike(&group[0].0, a) => group.push((a.clone(), b.clone())),
            _ => groups.push(vec![(a.clone(), b.clone())]),
        }
    }
    lines.0.extend(left(rows.0));
    lines.1.extend(left(rows.1));
    let length = lines.0.len().max(lines.1.len());
    let line = |lines: &[String], at: usize| lines.get(at).cloned();
    let paired: Vec<_> = (0..length).map(|at| (line(&lines.0, at), line(&lines.1, at))).collect();
    let lines = (!paired.is_empty()).then_some(Part::Lines(paired));
    lines.into_iter().chain(groups.into_iter().map(Part::Rows)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_with_the_same_keys_form_a_table() {
        let text = "hi\n{\"op\":\"a\",\"ns\":1}\n{\"op\":\"b\",\"ns\":2}\n{\"other\":3}\n";
        let found = parts(text, &text.replace("hi", "ho"));
        assert_eq!(found[0], Part::Lines(vec![(Some("hi".into()), Some("ho".into()))]));
        assert!(matches!(&found[1], Part::Rows(rows) if rows.len() == 2), "{found:?}");
        assert!(matches!(&found[2], Part::Rows(rows) if rows.len() == 1), "{found:?}");
        assert_eq!(found.len(), 3);
    }

    #[test]
    fn objects_without_a_partner_are_lines() {
        let found = parts("{\"a\":1}\n{\"b\":2}\n", "{\"a\":1}\n{\"c\":2}\n{\"c\":3}\n");
        let lines = vec![(Some("{\"b\":2}".into()), Some("{\"c\":2}".into())), (None, Some("{\"c\":3}".into()))];
        assert_eq!(found[0], Part::Lines(lines));
        assert!(matches!(&found[1], Part::Rows(rows) if rows.len() == 1));
        assert!(parts("", "").is_empty());
    }
}
