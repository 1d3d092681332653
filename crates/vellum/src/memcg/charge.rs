//! Charges: counters, limits, and stocks of pages charged in advance.
//!
//! A charge goes to a memcg and all its ancestors, whose counters all CPUs share. So a shard
//! charges [`STOCK`] pages more than it needs, and pages that are freed go to its stock: the
//! counters are touched once in 64 pages.
//!
//! A limit holds to the page: a charge is refused only when no stock below the full memcg has pages
//! left. Finding those takes no search. A shard that may have a stock is *marked*, in its memcg's
//! head, in the set of memcgs with such shards, and by a count in the memcg and each ancestor.
//! Within [`MARGIN`] of a limit no shard becomes marked: it charges what it needs and gives back
//! what is freed. So a memcg that reaches its limit takes back each stock once, and from then on
//! finds by one load that there are none.

use core::sync::atomic::{
    AtomicU64,
    Ordering::{Relaxed, SeqCst},
};

use super::shard::{Lists, PerCpuLruvec};
use super::{LruList, MemcgCounters, MemcgError, MemcgId, MemcgUsage, Memcgs, OverLimit, STOCK};
use crate::frame::Frames;
use crate::platform::Platform;

/// Within so many pages of a limit no shard keeps a stock.
pub const MARGIN: u64 = 4 * STOCK as u64;
/// The most empty stocks that one charge looks at before it is refused. The next attempt goes on
/// with the others.
const MOST_EMPTY: u32 = 256;

impl<'p> Memcgs<'p> {
    /// Changes a memcg's limit, in pages. What is above it already stays, and so do the stocks
    /// below the memcg, which can be charged without asking for the limit: [`Memcgs::drain`] takes
    /// them back.
    ///
    /// # Errors
    /// There is no such memcg.
    pub fn set_limit(&self, id: MemcgId, limit: u64) -> Result<(), MemcgError> {
        let memcg = self.find(id).ok_or(MemcgError::NoSuchMemcg(id))?;
        memcg.limit.store(limit, Relaxed);
        Ok(())
    }

    /// Returns a memcg's counters: a few loads, however many CPUs and memcgs there are.
    ///
    /// # Errors
    /// There is no such memcg.
    pub fn counters(&self, id: MemcgId) -> Result<MemcgCounters, MemcgError> {
        let memcg = self.find(id).ok_or(MemcgError::NoSuchMemcg(id))?;
        Ok(MemcgCounters {
            charged: memcg.charged.load(Relaxed),
            peak: memcg.peak.load(Relaxed),
            limit: memcg.limit.load(Relaxed),
            swapped: memcg.swapped.load(Relaxed),
        })
    }

    /// Returns what a memcg holds now. Costs a lock for each shard with pages of the memcg, and for
    /// each stock of its descendants'.
    ///
    /// # Errors
    /// There is no such memcg.
    pub fn usage<P: Platform>(&self, frames: &Frames<'p, P>, id: MemcgId) -> Result<MemcgUsage, MemcgError> {
        let memcg = self.find(id).ok_or(MemcgError::NoSuchMemcg(id))?;
        let mut usage = MemcgUsage {
            charged: memcg.charged.load(Relaxed),
            peak: memcg.peak.load(Relaxed),
            limit: memcg.limit.load(Relaxed),
            swapped: memcg.swapped.load(Relaxed),
            shards: memcg.shards.load(Relaxed),
            ..MemcgUsage::default()
        };
        let stock = |at| self.look(frames, at, |shard| shard.0.lock(frames.platform()).stock).unwrap_or(0);
        let stocks: u64 = self.marked(id).map(|at| u64::from(stock(at))).sum();
        usage.charged = usage.charged.saturating_sub(stocks);
        self.each_used(frames, id, |shard| {
            let lists = shard.0.lock(frames.platform());
            usage.lru.iter_mut().zip(lists.pages()).for_each(|(sum, n)| *sum += n);
            usage.deferred += u64::from(lists.deferred.len());
        });
        Ok(usage)
    }

    /// Returns the pages of a node on a memcg's own LRU lists, by list. The sum over all nodes is
    /// what [`Memcgs::usage`] returns.
    ///
    /// # Errors
    /// There is no such memcg.
    pub fn listed_on<P: Platform>(
        &self,
        frames: &Frames<'p, P>,
        id: MemcgId,
        node: usize,
    ) -> Result<[u64; LruList::COUNT], MemcgError> {
        self.find(id).ok_or(MemcgError::NoSuchMemcg(id))?;
        let mut sum = [0; LruList::COUNT];
        for shard in frames.shards_on(Some(node)) {
            let pages = self.look(frames, (id, shard), |shard| shard.0.lock(frames.platform()).pages());
            sum.iter_mut().zip(pages.unwrap_or_default()).for_each(|(sum, n)| *sum += n);
        }
        Ok(sum)
    }

    /// How many pages more it may be charged, as of an instant that nobody holds still.
    pub(crate) fn room(&self, id: MemcgId) -> u64 {
        self.ancestors(id).map(|at| self.room_below(at, 0)).min().unwrap_or(u64::MAX)
    }

    /// How many pages a memcg's counter is away from coming so close to its limit.
    fn room_below(&self, id: MemcgId, margin: u64) -> u64 {
        let memcg = self.of(id);
        memcg.limit.load(Relaxed).saturating_sub(margin).saturating_sub(memcg.charged.load(Relaxed))
    }

    /// Charges a memcg and its ancestors, or none of them; no closer to a limit than `margin`.
    fn charge_all(&self, id: MemcgId, pages: u32, margin: u64) -> Result<(), OverLimit> {
        for at in self.ancestors(id) {
            let memcg = self.of(at);
            let now = memcg.charged.fetch_add(pages as u64, Relaxed) + pages as u64;
            if now > memcg.limit.load(Relaxed).saturating_sub(margin) {
                memcg.charged.fetch_sub(pages as u64, Relaxed);
                for undo in self.ancestors(id).take_while(|g| *g != at) {
                    self.of(undo).charged.fetch_sub(pages as u64, Relaxed);
                }
                return Err(OverLimit(at));
            }
            if now > memcg.peak.load(Relaxed) {
                memcg.peak.fetch_max(now, Relaxed);
            }
        }
        Ok(())
    }

    /// Charges a memcg and its ancestors, whatever their limits.
    pub(super) fn charge_beyond(&self, id: MemcgId, pages: u32) {
        for at in self.ancestors(id) {
            let memcg = self.of(at);
            let now = memcg.charged.fetch_add(pages as u64, Relaxed) + pages as u64;
            memcg.peak.fetch_max(now, Relaxed);
        }
    }

    pub(super) fn uncharge_all(&self, id: MemcgId, pages: u32) {
        for at in self.ancestors(id) {
            self.of(at).charged.fetch_sub(pages as u64, Relaxed);
        }
    }

    /// Charges a memcg and its ancestors, with what stocks have if need be. The caller holds no
    /// shard's lock.
    #[cold]
    pub(super) fn charge<P: Platform>(&self, frames: &Frames<'p, P>, id: MemcgId, pages: u32) -> Result<(), OverLimit> {
        let Err(mut over) = self.charge_all(id, pages, 0) else { return Ok(()) };
        let mut empty = 0;
        // One pass for each memcg on the way up that is full.
        loop {
            let full = over.0;
            for (memcg, shard) in self.marked(full) {
                match self.drain_shard(frames, memcg, shard) {
                    0 => empty += 1,
                    _ => match self.charge_all(id, pages, 0) {
                        Ok(()) => return Ok(()),
                        Err(next) => over = next,
                    },
                }
                if over.0 != full || empty == MOST_EMPTY {
                    break;
                }
            }
            if over.0 == full {
                return Err(over);
            }
        }
    }

    /// Fills a shard's stock so that it holds at least `pages`: more, if no limit is near.
    #[cold]
    pub(super) fn restock(
        &self,
        (id, shard, at): (MemcgId, usize, &PerCpuLruvec),
        lists: &mut Lists,
        pages: u32,
    ) -> Result<(), OverLimit> {
        at.1.store(true, Relaxed);
        let missing = pages - lists.stock;
        if self.charge_all(id, missing + STOCK, MARGIN).is_ok() {
            lists.stock += missing + STOCK;
            if lists.keeps == 0 {
                self.mark(id, shard, lists);
            }
            return Ok(());
        }
        self.charge_all(id, missing, 0)?;
        lists.stock += missing;
        Ok(())
    }

    /// What a shard of a memcg may not keep of its stock: all that is more than [`STOCK`], or, near
    /// a limit, all. The caller uncharges that when it has given back the shard's lock.
    #[cold]
    pub(super) fn surplus(&self, (id, shard): (MemcgId, usize), lists: &mut Lists) -> u32 {
        if lists.keeps == 0 {
            if self.ancestors(id).any(|at| self.room_below(at, MARGIN) == 0) {
                return core::mem::take(&mut lists.stock);
            }
            self.mark(id, shard, lists);
        }
        let back = lists.stock.saturating_sub(STOCK);
        if lists.stock > lists.keeps {
            lists.stock -= back;
            return back;
        }
        0
    }

    /// A shard, whose lock the caller holds, may have a stock from now on.
    fn mark(&self, id: MemcgId, shard: usize, lists: &mut Lists) {
        lists.keeps = 2 * STOCK;
        self.of(id).stocked[shard / 64].fetch_or(1 << (shard % 64), SeqCst);
        self.stocked[usize::from(id.0) / 64].fetch_or(1 << (id.0 % 64), SeqCst);
        self.ancestors(id).for_each(|at| _ = self.of(at).stocks.fetch_add(1, SeqCst));
    }

    /// Returns a shard's stock to the memcg, and ends its mark. How many pages that were.
    fn drain_shard<P: Platform>(&self, frames: &Frames<'p, P>, id: MemcgId, shard: usize) -> u32 {
        let drained = self.look(frames, (id, shard), |part| {
            let mut lists = part.0.lock(frames.platform());
            if core::mem::take(&mut lists.keeps) != 0 {
                let stocked = &self.of(id).stocked;
                stocked[shard / 64].fetch_and(!(1 << (shard % 64)), SeqCst);
                self.ancestors(id).for_each(|at| _ = self.of(at).stocks.fetch_sub(1, SeqCst));
                let memcgs = &self.stocked[usize::from(id.0) / 64];
                if stocked.iter().all(|word| word.load(SeqCst) == 0) {
                    memcgs.fetch_and(!(1 << (id.0 % 64)), SeqCst);
                    // Another shard may have become marked in between.
                    if stocked.iter().any(|word| word.load(SeqCst) != 0) {
                        memcgs.fetch_or(1 << (id.0 % 64), SeqCst);
                    }
                }
            }
            core::mem::take(&mut lists.stock)
        });
        let stock = drained.unwrap_or(0);
        if stock != 0 {
            self.uncharge_all(id, stock);
        }
        stock
    }

    /// Takes back the stocks of a memcg and its descendants: from then on a limit that was set
    /// before holds for all of them. Costs a lock for each stock.
    ///
    /// # Errors
    /// There is no such memcg.
    pub fn drain<P: Platform>(&self, frames: &Frames<'p, P>, id: MemcgId) -> Result<(), MemcgError> {
        self.find(id).ok_or(MemcgError::NoSuchMemcg(id))?;
        self.marked(id).for_each(|(id, shard)| _ = self.drain_shard(frames, id, shard));
        Ok(())
    }

    /// The shards of a memcg and its descendants that may have a stock.
    fn marked(&self, top: MemcgId) -> impl Iterator<Item = (MemcgId, usize)> + '_ {
        let any = self.of(top).stocks.load(SeqCst) != 0;
        let memcgs = bits(&self.stocked).take_while(move |_| any).map(|id| MemcgId(id as u16));
        let below = memcgs.filter(move |id| self.ancestors(*id).any(|at| at == top));
        below.flat_map(|id| bits(&self.of(id).stocked).map(move |shard| (id, shard)))
    }
}

/// The members of a set, each word as of when the first of it is asked for.
fn bits(words: &[AtomicU64]) -> impl Iterator<Item = usize> + '_ {
    words.iter().enumerate().flat_map(|(i, word)| {
        let mut left = word.load(SeqCst);
        core::iter::from_fn(move || {
            let bit = (left != 0).then(|| left.trailing_zeros() as usize)?;
            left &= left - 1;
            Some(i * 64 + bit)
        })
    })
}
