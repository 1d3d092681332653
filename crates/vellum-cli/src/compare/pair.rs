//! Pairs the lines and the rows of figures of several outputs.

use serde_json::{Map, Value};

/// A JSON object of an output.
pub type Object = Map<String, Value>;

/// A part of all outputs, with a column for each output.
#[derive(Debug, PartialEq)]
pub enum Part {
    /// Lines. Where an output has fewer lines than the others, its column is `None`.
    Lines(Vec<Vec<Option<String>>>),
    /// JSON objects, all with the same keys.
    Rows(Vec<Vec<Object>>),
}

/// The lines of one output: JSON objects, and others.
#[derive(Default)]
struct Lines {
    text: Vec<String>,
    rows: Vec<Object>,
}

fn read(text: &str) -> Lines {
    let mut lines = Lines::default();
    for line in text.lines() {
        match serde_json::from_str(line) {
            Ok(Value::Object(object)) => lines.rows.push(object),
            _ => lines.text.push(line.into()),
        }
    }
    lines
}

fn alike(a: &Object, b: &Object) -> bool {
    a.len() == b.len() && a.keys().all(|key| b.contains_key(key))
}

/// The figure that stands for those of several runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// The least, for counts of instructions: what is more is other work.
    Least,
    /// The median, for times; of an even number of runs, the lower of the middle two.
    Median,
}

/// Returns the output of several runs of one program: the first run's, in which each figure is
/// the one that `choice` chooses of all runs. Figures are the numbers of JSON objects. Rows are
/// matched by their position.
///
/// # Errors
/// Returns the first row, of any run, that has other keys than the first run's, or is missing.
pub fn chosen(runs: &[String], choice: Choice) -> Result<String, String> {
    let Some((first, others)) = runs.split_first() else { return Ok(String::new()) };
    let others: Vec<_> = others.iter().map(|run| read(run).rows).collect();
    let mut text = String::new();
    let mut row = 0;
    for line in first.lines() {
        let Ok(Value::Object(mut object)) = serde_json::from_str(line) else {
            text += &format!("{line}\n");
            continue;
        };
        let alike_row = |other: &'_ Vec<Object>| other.get(row).filter(|other| alike(&object, other)).cloned();
        let others: Option<Vec<_>> = others.iter().map(alike_row).collect();
        let others = others.ok_or_else(|| line.to_string())?;
        for (key, value) in &mut object {
            let figures = others.iter().map(|other| &other[key]).chain([&*value]);
            let mut figures: Vec<_> = figures.filter_map(|figure| Some((figure.as_f64()?, figure.clone()))).collect();
            figures.sort_by(|(a, _), (b, _)| a.total_cmp(b));
            let at = if choice == Choice::Least { 0 } else { figures.len().saturating_sub(1) / 2 };
            if value.is_number()
                && let Some((_, figure)) = figures.get(at)
            {
                *value = figure.clone();
            }
        }
        row += 1;
        text += &format!("{}\n", Value::Object(object));
    }
    match others.iter().find_map(|rows| rows.get(row)) {
        Some(surplus) => Err(Value::Object(surplus.clone()).to_string()),
        None => Ok(text),
    }
}

/// The figure of which the runs of one program differ most.
#[derive(Debug, Clone, PartialEq)]
pub struct Spread {
    /// By which share of the least run the greatest exceeds it.
    pub share: f64,
    /// The texts of the figure's row, and the figure's name.
    pub figure: String,
}

/// Returns the figure of which several runs of one program differ most; `None` if there are fewer
/// than two runs or no figures. Figures that are less than 1 in some run are left out: they are
/// rounded too coarsely for a share of them to mean anything. Rows are matched by their position;
/// a row that another run lacks is left out.
pub fn spread(runs: &[String]) -> Option<Spread> {
    let rows: Vec<_> = runs.iter().map(|run| read(run).rows).collect();
    let (first, others) = rows.split_first().filter(|(_, others)| !others.is_empty())?;
    let mut widest: Option<Spread> = None;
    for (nth, row) in first.iter().enumerate() {
        let Some(others) = others.iter().map(|rows| rows.get(nth)).collect::<Option<Vec<_>>>() else { continue };
        for (key, value) in row {
            let figures = others.iter().map(|other| other.get(key)).chain([Some(value)]);
            let Some(figures) = figures.map(|figure| figure?.as_f64()).collect::<Option<Vec<_>>>() else { continue };
            let least = figures.iter().copied().fold(f64::INFINITY, f64::min);
            let greatest = figures.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let share = (greatest - least) / least;
            if least >= 1.0 && widest.as_ref().is_none_or(|widest| share > widest.share) {
                let texts = row.values().filter_map(Value::as_str).chain([key.as_str()]);
                widest = Some(Spread { share, figure: texts.collect::<Vec<_>>().join(", ") });
            }
        }
    }
    widest
}

/// Matches the lines of the outputs in order: JSON objects with objects, and other lines with each
/// other. Groups consecutive objects with the same keys. Lines come first.
pub fn parts(outputs: &[String]) -> Vec<Part> {
    let mut outputs: Vec<Lines> = outputs.iter().map(|output| read(output)).collect();
    let rows = |outputs: &[Lines], at: usize| -> Option<Vec<Object>> {
        let first = outputs.first()?.rows.get(at)?;
        outputs.iter().map(|output| output.rows.get(at).filter(|row| alike(first, row)).cloned()).collect()
    };
    let mut groups: Vec<Vec<Vec<Object>>> = Vec::new();
    let mut matched = 0;
    while let Some(row) = rows(&outputs, matched) {
        matched += 1;
        match groups.last_mut() {
            Some(group) if alike(&group[0][0], &row[0]) => group.push(row),
            _ => groups.push(vec![row]),
        }
    }
    // Objects without a partner are treated as lines.
    for output in &mut outputs {
        let left = output.rows.drain(matched..).map(|row| Value::Object(row).to_string());
        output.text.extend(left);
    }
    let length = outputs.iter().map(|output| output.text.len()).max().unwrap_or_default();
    let line = |at: usize| outputs.iter().map(|output| output.text.get(at).cloned()).collect();
    let lines = (length > 0).then(|| Part::Lines((0..length).map(line).collect()));
    lines.into_iter().chain(groups.into_iter().map(Part::Rows)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(outputs: &[&str]) -> Vec<String> {
        outputs.iter().map(|&output| output.into()).collect()
    }

    #[test]
    fn objects_with_the_same_keys_form_a_table() {
        let text = "hi\n{\"op\":\"a\",\"ns\":1}\n{\"op\":\"b\",\"ns\":2}\n{\"other\":3}\n";
        let found = parts(&owned(&[text, &text.replace("hi", "ho"), text]));
        assert_eq!(found[0], Part::Lines(vec![vec![Some("hi".into()), Some("ho".into()), Some("hi".into())]]));
        assert!(matches!(&found[1], Part::Rows(rows) if rows.len() == 2 && rows[0].len() == 3), "{found:?}");
        assert!(matches!(&found[2], Part::Rows(rows) if rows.len() == 1), "{found:?}");
        assert_eq!(found.len(), 3);
    }

    #[test]
    fn objects_without_a_partner_are_lines() {
        let found = parts(&owned(&["{\"a\":1}\n{\"b\":2}\n", "{\"a\":1}\n{\"c\":2}\n{\"c\":3}\n"]));
        let lines =
            vec![vec![Some("{\"b\":2}".into()), Some("{\"c\":2}".into())], vec![None, Some("{\"c\":3}".into())]];
        assert_eq!(found[0], Part::Lines(lines));
        assert!(matches!(&found[1], Part::Rows(rows) if rows.len() == 1));
        assert!(parts(&owned(&["", ""])).is_empty());
        // A row that the third output lacks has no partner.
        let found = parts(&owned(&["{\"a\":1}", "{\"a\":2}", "{\"b\":2}"]));
        assert!(matches!(&found[..], [Part::Lines(lines)] if lines[0].len() == 3), "{found:?}");
    }

    #[test]
    fn each_figure_is_the_least_of_all_runs() {
        let runs = owned(&[
            "first\n{\"op\":\"a\",\"ns\":2.5,\"kb\":1}\n{\"ns\":7}\n",
            "second\n{\"op\":\"b\",\"ns\":1.5,\"kb\":4}\n{\"ns\":9}\n",
        ]);
        assert_eq!(chosen(&runs, Choice::Least).unwrap(), "first\n{\"op\":\"a\",\"ns\":1.5,\"kb\":1}\n{\"ns\":7}\n");
        assert_eq!(chosen(&runs[..1], Choice::Least).unwrap(), runs[0]);
    }

    #[test]
    fn a_time_is_the_median_of_all_runs() {
        let runs = owned(&["{\"ns\":9,\"op\":\"a\"}", "{\"ns\":2.5,\"op\":\"a\"}", "{\"ns\":3,\"op\":\"a\"}"]);
        assert_eq!(chosen(&runs, Choice::Median).unwrap(), "{\"ns\":3,\"op\":\"a\"}\n");
        assert_eq!(chosen(&runs[..2], Choice::Median).unwrap(), "{\"ns\":2.5,\"op\":\"a\"}\n");
    }

    #[test]
    fn the_spread_is_that_of_the_figure_of_which_the_runs_differ_most() {
        let runs = owned(&[
            "first\n{\"op\":\"a\",\"kib\":4,\"fork\":100,\"exit\":50.0}\n{\"op\":\"b\",\"fork\":200}\n",
            "second\n{\"op\":\"a\",\"kib\":4,\"fork\":103,\"exit\":51.0}\n{\"op\":\"b\",\"fork\":190}\n",
            "third\n{\"op\":\"a\",\"kib\":4,\"fork\":101,\"exit\":49.0}\n{\"op\":\"b\",\"fork\":199}\n",
        ]);
        let found = spread(&runs).unwrap();
        assert_eq!((found.share, found.figure.as_str()), (10.0 / 190.0, "b, fork"));
        assert_eq!(spread(&runs[..2].iter().rev().cloned().collect::<Vec<_>>()).unwrap().share, 10.0 / 190.0);
        assert_eq!(spread(&runs[..1]), None, "one run does not differ");
        assert_eq!(spread(&owned(&["no figures", "none"])), None);
    }

    #[test]
    fn figures_below_1_and_rows_that_a_run_lacks_are_not_in_the_spread() {
        let runs =
            owned(&["{\"op\":\"a\",\"fork\":0.9,\"exit\":4}\n{\"exit\":1}", "{\"op\":\"a\",\"fork\":9,\"exit\":5}"]);
        assert_eq!(spread(&runs), Some(Spread { share: 0.25, figure: "a, exit".into() }));
    }

    #[test]
    fn a_run_with_other_rows_is_refused() {
        assert_eq!(chosen(&owned(&["{\"a\":1}", "{\"b\":1}"]), Choice::Least), Err("{\"a\":1}".into()));
        assert_eq!(chosen(&owned(&["{\"a\":1}", ""]), Choice::Least), Err("{\"a\":1}".into()));
        assert_eq!(chosen(&owned(&["", "{\"a\":1}"]), Choice::Least), Err("{\"a\":1}".into()));
    }
}
