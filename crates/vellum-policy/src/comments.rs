//! Comment blocks of Rust files, and paragraphs of Markdown files.

use crate::Source;

/// Consecutive comment lines of one kind (`//`, `///` or `//!`), or one line of Markdown prose.
#[derive(Clone, Debug)]
pub struct Comment {
    /// The number of the first line, from 1.
    pub line: usize,
    /// The text, without comment markers, code examples and table rows.
    pub text: String,
}

/// Returns the comment blocks of a Rust file, or the prose lines of a Markdown file.
///
/// Comments behind code on the same line are left out, as are lines of code examples and of tables.
pub fn comments(source: &Source) -> Vec<Comment> {
    if source.is_rust() { of_rust(&source.text) } else { of_markdown(&source.text) }
}

fn of_rust(text: &str) -> Vec<Comment> {
    let mut blocks: Vec<Comment> = Vec::new();
    // The comment marker of the block that is being read, and true if a code example is open in the
    // block; `None` between blocks.
    let mut open: Option<(&str, bool)> = None;
    for (at, line) in text.lines().enumerate() {
        let Some((marker, said)) = marked(line) else {
            open = None;
            continue;
        };
        let in_code = match open {
            Some((before, in_code)) if before == marker => in_code,
            _ => {
                blocks.push(Comment { line: at + 1, text: String::new() });
                false
            }
        };
        let fence = said.starts_with("```");
        open = Some((marker, in_code ^ fence));
        if !in_code && !fence && !said.starts_with('|') {
            let block = &mut blocks.last_mut().expect("a block is open").text;
            if !block.is_empty() {
                block.push('\n');
            }
            block.push_str(said);
        }
    }
    blocks
}

/// Splits a comment line into its marker and its text. Returns `None` for a line that has code.
pub(crate) fn marked(line: &str) -> Option<(&'static str, &str)> {
    let line = line.trim_start();
    if line.starts_with("////") {
        return None;
    }
    ["///", "//!", "//"].into_iter().find_map(|marker| {
        let said = line.strip_prefix(marker)?;
        Some((marker, said.strip_prefix(' ').unwrap_or(said)))
    })
}

fn of_markdown(text: &str) -> Vec<Comment> {
    let mut in_code = false;
    let lines = text.lines().enumerate();
    let prose = lines.filter(|(_, line)| {
        in_code ^= line.trim_start().starts_with("```");
        !in_code && !line.trim().is_empty() && !["|", "```", "    ", "#"].iter().any(|other| line.starts_with(other))
    });
    prose
        .map(|(at, line)| Comment { line: at + 1, text: line.trim().trim_start_matches(['-', '*', ' ']).to_owned() })
        .collect()
}
