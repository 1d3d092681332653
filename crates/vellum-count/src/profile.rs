//! The counts by the address of an instruction, and their text form.

use crate::tally::Cause;
use std::collections::BTreeMap;

/// The executions of a kernel's blocks, by cause.
#[derive(Debug, Default)]
pub struct Profile {
    blocks: Vec<Block>,
}

#[derive(Debug)]
struct Block {
    /// The addresses of its instructions.
    instructions: Vec<u64>,
    /// How often it was executed. Most blocks have few causes.
    times: Vec<(Cause, u64)>,
}

/// A row of the text form.
#[derive(Debug, PartialEq, Eq)]
pub struct Row<'a> {
    /// The name of the cause.
    pub cause: &'a str,
    /// The address of the instruction.
    pub address: u64,
    /// How often it was executed.
    pub times: u64,
}

impl Profile {
    /// Adds a block with instructions at these addresses. Returns its number.
    pub fn add(&mut self, instructions: impl Iterator<Item = u64>) -> usize {
        self.blocks.push(Block { instructions: instructions.collect(), times: Vec::new() });
        self.blocks.len() - 1
    }

    /// A block is executed for this cause. A block in which a fault happens counts as a whole.
    pub fn executes(&mut self, block: usize, cause: Cause) {
        let times = &mut self.blocks[block].times;
        match times.iter_mut().find(|(other, _)| *other == cause) {
            Some((_, times)) => *times += 1,
            None => times.push((cause, 1)),
        }
    }

    /// Returns the text form: a line `TIMES ADDRESS CAUSE` for each instruction and cause.
    pub fn text<'a>(&self, name: impl Fn(Cause) -> &'a str) -> String {
        let mut rows = BTreeMap::new();
        for block in &self.blocks {
            for (cause, times) in &block.times {
                for address in &block.instructions {
                    *rows.entry((name(*cause), *address)).or_insert(0) += times;
                }
            }
        }
        rows.iter().map(|((name, address), times)| format!("{times} {address:x} {name}\n")).collect()
    }

    /// Reads a line of the text form. Returns `None` if it is not of this form.
    pub fn parse(line: &str) -> Option<Row<'_>> {
        let mut words = line.splitn(3, ' ');
        let times = words.next()?.parse().ok()?;
        let address = u64::from_str_radix(words.next()?, 16).ok()?;
        Some(Row { cause: words.next()?, address, times })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tally::{INTERRUPT, PAGE_FAULT, Tally};

    #[test]
    fn an_instruction_of_several_blocks_has_one_row_a_cause() {
        let tally = Tally::default();
        let mut profile = Profile::default();
        let first = profile.add([0x10, 0x14].into_iter());
        let second = profile.add([0x14].into_iter());
        for (block, cause) in [(first, PAGE_FAULT), (first, INTERRUPT), (second, PAGE_FAULT)] {
            profile.executes(block, cause);
        }
        let text = profile.text(|cause| tally.name(cause));
        assert_eq!(text, "1 10 interrupt\n1 14 interrupt\n1 10 page fault\n2 14 page fault\n");
        let row = Row { cause: "page fault", address: 0x14, times: 2 };
        assert_eq!(text.lines().last().and_then(Profile::parse), Some(row));
        assert_eq!(Profile::parse("2 x page fault"), None);
    }
}
