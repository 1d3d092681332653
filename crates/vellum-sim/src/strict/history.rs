//! The last events of a frame or an entry.

use std::fmt;
use std::sync::Arc;

use vellum::platform::Event;

/// The number of events that one history keeps.
const KEPT: usize = 16;

/// One event.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub seq: u64,
    pub cpu: usize,
    pub event: Event,
    /// The operation that the test was doing ([`crate::Strict::label`]).
    pub label: Option<Arc<str>>,
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{} CPU {} {}", self.seq, self.cpu, EventText(&self.event))?;
        match &self.label {
            Some(label) => write!(f, " [{label}]"),
            None => Ok(()),
        }
    }
}

/// Shows an event, with entries in hexadecimal.
pub(crate) struct EventText<'a>(pub &'a Event);

impl fmt::Display for EventText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Event::Store(table, index, old, new) => {
                write!(f, "Store {table:?}[{index}] {old:#x} -> {new:#x}")
            }
            Event::ClearAnon(table, index, old) => write!(f, "Discard {table:?}[{index}] {old:#x} -> 0"),
            Event::Exchange(table, index, new) => write!(f, "Exchange {table:?}[{index}] -> {new:#x}"),
            other => write!(f, "{other:?}"),
        }
    }
}

/// The last events, oldest first.
#[derive(Debug, Default)]
pub(crate) struct History {
    ring: Vec<Record>,
    next: usize,
}

impl History {
    pub fn push(&mut self, record: Record) {
        if self.ring.len() < KEPT {
            self.ring.push(record);
        } else {
            self.ring[self.next] = record;
            self.next = (self.next + 1) % KEPT;
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &Record> {
        let (new, old) = self.ring.split_at(self.next);
        old.iter().chain(new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_events_are_kept_in_order() {
        let mut history = History::default();
        for seq in 0..40 {
            history.push(Record { seq, cpu: 0, event: Event::Step, label: None });
        }
        assert!(history.iter().map(|r| r.seq).eq(24..40));
    }
}
