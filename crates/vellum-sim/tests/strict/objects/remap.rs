//! VMAs of objects that change their size or place: each page goes on showing the page of the object that it showed, and keeps
//! its copy.

use vellum::space::{RemapError, RemapFlags, RemapRequest};

use super::world::{BASE, Mapped, PAGES, World, at};

impl World<'_> {
    /// To addresses that are given; all that is mapped there, or one VMA that grows.
    pub(super) fn remap(&mut self) {
        let (space, old) = (self.a_space(), self.a_span());
        let len = old.end - old.start;
        // A second time, larger, or all of it.
        let (old_len, more) = self.dice.one_of(&[(0, len), (len, 3), (len, 0), (len, 0)]);
        let new_len = if more == 3 { len + 3 } else { len };
        if new_len > PAGES {
            return;
        }
        let to = BASE + self.dice.below(PAGES - new_len + 1);
        let leave = old_len == new_len && self.dice.percent(30);
        let mut flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
        flags.set(RemapFlags::DONTUNMAP, leave);
        let pages = &mut self.spaces[space].pages;
        let there = to..to + new_len;
        // The VMA at the old addresses, as far as it goes on.
        let first = pages.get(&old.start).copied();
        let next = |n: u64| first.map(|first| Mapped { page: first.page + n, copy: None, ..first });
        let alike = |n: u64| pages.get(&(old.start + n)).map(|mapped| Mapped { copy: None, ..*mapped }) == next(n);
        let whole = first.is_some() && (0..old_len).all(alike);
        let expected = if old.start < there.end && there.start < old.start + old_len {
            Err(RemapError::Overlap)
        } else if first.is_none() || old_len == 0 && there.contains(&old.start) || old_len != new_len && !whole {
            // In which order it looks is no matter: all of that is EFAULT, or EINVAL where it is private.
            Err(RemapError::NotMapped(0))
        } else {
            Ok(at(to))
        };
        let private = old_len == 0 && first.is_some_and(|first| !first.shared) && !there.contains(&old.start);
        let request =
            RemapRequest { addr: at(old.start), old_len: at(old_len), new_len: at(new_len), flags, new_addr: at(to) };
        match (self.spaces[space].space.remap(request), expected) {
            (Ok(got), Ok(wanted)) if !private => assert_eq!(got, wanted),
            (Err(RemapError::NotShared(_)), _) if private => return,
            (Err(RemapError::NotMapped(_)), Err(RemapError::NotMapped(_))) => return,
            (Err(RemapError::Overlap), Err(RemapError::Overlap)) => return,
            (Err(RemapError::NoMemory(_)), Ok(_)) if self.tight => return,
            (got, expected) => panic!("remap answers {got:x?}, not {expected:x?}"),
        }
        let pages = &mut self.spaces[space].pages;
        let moved: Vec<(u64, Mapped)> =
            pages.range(old.start..old.start + old_len).map(|(page, mapped)| (*page, *mapped)).collect();
        pages.retain(|page, _| !(old.start..old.start + old_len).contains(page));
        if leave {
            pages.extend(moved.iter().map(|(page, mapped)| (*page, Mapped { copy: None, ..*mapped })));
        }
        pages.extend(moved.into_iter().map(|(page, mapped)| (page - old.start + to, mapped)));
        let grown = first.into_iter().flat_map(|first| (old_len..new_len).map(move |n| (n, first)));
        pages.extend(grown.map(|(n, first)| (to + n, Mapped { page: first.page + n, copy: None, ..first })));
    }
}
