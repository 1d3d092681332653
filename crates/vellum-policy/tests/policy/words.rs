//! Comments and pages name the actor, and use the field's words.
//!
//! The tests count words and openings that make comments hard to read. A low count does not prove
//! good prose.

use std::collections::BTreeMap;

use regex::Regex;
use vellum_policy::{Comment, Tree, comments};

/// The most comment blocks that may open with a word such as "who" or "what", in percent of blocks.
const OPENINGS: f64 = 2.0;
/// The most words for persons that may be used of code, in percent of words.
const PERSONS: f64 = 0.3;
/// The most words of our own for which the field has one, in percent of words.
const PRIVATE: f64 = 0.5;

#[derive(Clone, Copy, Default)]
struct Count {
    blocks: usize,
    words: usize,
    openings: usize,
    persons: usize,
    private: usize,
}

struct Patterns {
    word: Regex,
    opening: Regex,
    person: Regex,
    private: Regex,
    sentence: Regex,
}

impl Patterns {
    fn new() -> Patterns {
        let new = |pattern| Regex::new(pattern).expect("a pattern");
        Patterns {
            word: new(r"\w+"),
            opening: new(r"^(Who|Whoever|What|Whatever|Which|Where|How|Whether|When|Whom|Whose)\b[^?]*$"),
            person: new(
                r"\b([Ww]ho|[Ww]hoever|[Ww]hom|[Ww]hose|he|him|his|He|[Ss]omebody|[Nn]obody|[Aa]nybody|[Ee]verybody)\b",
            ),
            private: new(r"(?x)\b([Aa]reas?|[Oo]utwaits?|lets?[\x20]go|[Tt]old|[Ss]ettled?s?|[Dd]oors?|[Nn]ameless
                |[Ww]ish(es)?|[Hh]indrances?|[Ll]eavers|[Ss]heets?)\b"),
            sentence: new(r"[.:;!?]\s"),
        }
    }

    fn count(&self, comment: &Comment) -> Count {
        let text = &comment.text;
        let prose: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let prose = prose.join(" ");
        let first = match self.sentence.find(prose.trim()) {
            Some(end) => &prose.trim()[..=end.start()],
            None => prose.trim(),
        };
        Count {
            blocks: 1,
            words: self.word.find_iter(text).count(),
            openings: usize::from(self.opening.is_match(first)),
            persons: self.person.find_iter(text).count(),
            private: self.private.find_iter(text).count(),
        }
    }
}

#[test]
fn comments_and_pages_name_the_actor_in_the_fields_words() {
    let patterns = Patterns::new();
    let mut total = Count::default();
    let mut files: BTreeMap<String, usize> = BTreeMap::new();
    for source in Tree::of_this_project().sources.iter().filter(|source| !source.is_test()) {
        for comment in comments(source) {
            let count = patterns.count(&comment);
            if count.words == 0 {
                continue;
            }
            total.blocks += 1;
            total.words += count.words;
            total.openings += count.openings;
            total.persons += count.persons;
            total.private += count.private;
            *files.entry(source.path.clone()).or_default() += count.openings + count.persons + count.private;
        }
    }
    let mut worst: Vec<_> = files.into_iter().collect();
    worst.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    worst.truncate(20);
    for (what, count, of, limit) in [
        ("comment blocks that open with who, what, whether …", total.openings, total.blocks, OPENINGS),
        ("words for persons, used of code", total.persons, total.words, PERSONS),
        ("words of our own where the field has one", total.private, total.words, PRIVATE),
    ] {
        let percent = 100.0 * count as f64 / of as f64;
        assert!(percent <= limit, "{what}: {percent:.2} %, limit {limit} %; worst files: {worst:?}");
    }
}
