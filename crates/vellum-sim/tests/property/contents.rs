//! What a page holds, as far as that is known: memory that was freed lazily holds what it held or nothing, and which of the two is
//! decided once.

use super::model::SLOTS;

/// What is in each of [`SLOTS`]. All the rest is zero.
pub type Words = [u64; SLOTS.len()];

pub const NOTHING: Words = [0; SLOTS.len()];

/// More is not kept apart.
const ROOM: usize = 4;

/// One of several.
#[derive(Clone, Copy, Debug)]
pub struct Contents {
    may: [Words; ROOM],
    /// How many of them; none if it may be anything.
    used: usize,
    /// Whether it may go at any time, because it was not written to since it was freed.
    goes: bool,
}

impl PartialEq for Contents {
    fn eq(&self, other: &Self) -> bool {
        (self.goes, self.all()) == (other.goes, other.all())
    }
}

impl Eq for Contents {}

impl Contents {
    pub const NOTHING: Contents = Contents { may: [NOTHING; ROOM], used: 1, goes: false };

    fn all(&self) -> &[Words] {
        &self.may[..self.used]
    }

    pub fn may_go(&self) -> bool {
        self.goes
    }

    /// It is freed lazily.
    pub fn let_go(&mut self) {
        self.or_nothing();
        self.goes = true;
    }

    /// It may have been forgotten.
    pub fn or_nothing(&mut self) {
        if self.could(|words| *words == NOTHING) {
            return;
        }
        if self.used == ROOM {
            self.used = 0;
            return;
        }
        self.may[self.used] = NOTHING;
        self.used += 1;
    }

    /// It is written to: what it is now stays.
    pub fn change(&mut self, change: impl Fn(&mut Words)) {
        self.may[..self.used].iter_mut().for_each(change);
        self.goes = false;
        self.narrow(|_| true);
    }

    pub fn could(&self, like: impl Fn(&Words) -> bool) -> bool {
        self.used == 0 || self.all().iter().any(like)
    }

    /// It was seen to be like this; whether that could be.
    pub fn see(&mut self, like: impl Fn(&Words) -> bool) -> bool {
        let could = self.could(&like);
        // What is not gone yet may go later.
        let stays = self.goes && self.all().iter().any(|words| *words != NOTHING && like(words));
        self.narrow(|words| like(words) || stays && *words == NOTHING);
        could
    }

    /// Only those, each once.
    fn narrow(&mut self, like: impl Fn(&Words) -> bool) {
        let (all, used) = (self.may, self.used);
        self.used = 0;
        for words in all[..used].iter().filter(|words| like(words)) {
            if !self.all().contains(words) {
                self.may[self.used] = *words;
                self.used += 1;
            }
        }
    }
}
