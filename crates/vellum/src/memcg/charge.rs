//! Charges: counters, limits, and stocks of pages charged in advance.
//!
//! A charge goes to a memcg and all its ancestors, whose counters all CPUs share. So a per-CPU
//! lruvec charges [`STOCK`] pages more than it needs, and pages that are freed go to its stock: the
//! counters are touched once for 64 pages.
//!
//! A limit is exact to the page: a charge is refused only when no lruvec of the full memcg or of
//! its descendants has pages left in its stock (INV-9). These stocks are found without a search of
//! all lruvecs. A lruvec that may have a stock is *marked as stocked*: by a bit in its memcg's
//! record ([`super::tree::Memcg`]), by the memcg's bit in the set of memcgs with such lruvecs, and
//! by a count in the records of the memcg and of each ancestor. Within [`MARGIN`] of a limit no
//! lruvec becomes marked: it charges what it needs and uncharges what is freed. So when a memcg
//! reaches its limit, each stock below it is drained (uncharged) once, and from then on one load of
//! the count shows that no stocks are left.

use core::sync::atomic::{
    AtomicU64,
    Ordering::{Relaxed, SeqCst},
};

use super::lruvec::{Lruvec, LruvecId, PerCpuLruvec};
use super::{LruList, MemcgCounters, MemcgError, MemcgId, MemcgUsage, Memcgs, OverLimit, STOCK};
use crate::frame::Frames;
use crate::platform::Platform;

/// The distance to a limit, in pages, within which no per-CPU lruvec keeps a stock.
pub const MARGIN: u64 = 4 * STOCK as u64;
/// The maximum number of empty stocks that one charge drains before it is refused, which bounds its
/// cost (INV-11). Drained lruvecs lose their marks, so the next attempt drains other lruvecs.
const MAX_EMPTY_STOCKS: u32 = 256;

impl<'p> Memcgs<'p> {
    /// Changes a memcg's limit, in pages. Pages charged above the new limit stay charged. So do
    /// pages that per-CPU lruvecs have charged in advance, which later allocations use without
    /// another check of the limit: [`Memcgs::drain`] uncharges those.
    ///
    /// # Errors
    /// There is no such memcg.
    pub fn set_limit(&self, id: MemcgId, limit: u64) -> Result<(), MemcgError> {
        let memcg = self.find(id).ok_or(MemcgError::NoSuchMemcg(id))?;
        memcg.limit.store(limit, Relaxed);
        Ok(())
    }

    /// Returns a memcg's counters. Costs a few loads, however many CPUs and memcgs there are.
    ///
    /// # Errors
    /// There is no such memcg.
    pub fn counters(&self, id: MemcgId) -> Result<MemcgCounters, MemcgError> {
        let memcg = self.find(id).ok_or(MemcgError::NoSuchMemcg(id))?;
        let [dirty, writing] = memcg.dirty.counts();
        Ok(MemcgCounters {
            dirty,
            writing,
            dirty_limits: memcg.dirty.limits(),
            charged: memcg.charged.load(Relaxed),
            peak: memcg.peak.load(Relaxed),
            limit: memcg.limit.load(Relaxed),
            swapped: memcg.swapped.load(Relaxed),
        })
    }

    /// Returns a memcg's memory usage. Takes, one at a time, the lock of each per-CPU lruvec of the
    /// memcg that was ever used, and of each one of its descendants that may have a stock.
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
            lruvecs: memcg.lruvec_frames.load(Relaxed),
            ..MemcgUsage::default()
        };
        let stock = |at| self.with_lruvec(frames, at, |lruvec| lruvec.lock(frames.platform()).stock).unwrap_or(0);
        let stocks: u64 = self.stocked_lruvecs(id).map(|at| u64::from(stock(at))).sum();
        usage.charged = usage.charged.saturating_sub(stocks);
        self.each_used_lruvec(frames, id, |lruvec| {
            let lists = lruvec.lock(frames.platform());
            usage.lru.iter_mut().zip(lists.pages()).for_each(|(sum, n)| *sum += n);
            usage.deferred += u64::from(lists.deferred.len());
        });
        Ok(usage)
    }

    /// Returns the pages of a node on a memcg's own LRU lists, by list. The sum over all nodes is
    /// [`MemcgUsage::lru`].
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
        for index in frames.lruvecs_on(Some(node)) {
            let lruvec = LruvecId { memcg: id, index };
            let pages = self.with_lruvec(frames, lruvec, |at| at.lock(frames.platform()).pages());
            sum.iter_mut().zip(pages.unwrap_or_default()).for_each(|(sum, n)| *sum += n);
        }
        Ok(sum)
    }

    /// Returns how many more pages a memcg may be charged (Linux: `mem_cgroup_margin`). Other CPUs
    /// charge meanwhile, so the result may be outdated.
    pub(crate) fn room(&self, id: MemcgId) -> u64 {
        self.ancestors(id).map(|at| self.room_below(at, 0)).min().unwrap_or(u64::MAX)
    }

    /// Returns how many more pages a memcg may be charged so that `margin` pages are left below its
    /// own limit. Its ancestors' limits are not regarded.
    fn room_below(&self, id: MemcgId, margin: u64) -> u64 {
        let memcg = self.memcg(id);
        memcg.limit.load(Relaxed).saturating_sub(margin).saturating_sub(memcg.charged.load(Relaxed))
    }

    /// Charges a memcg and its ancestors, or none of them, no closer to a limit than `margin`
    /// pages. One atomic addition both counts the charge and returns the sum that is compared with
    /// the limit, so two CPUs can't pass the limit together.
    ///
    /// # Errors
    /// The first memcg, from `id` upwards, whose limit does not allow the charge. Nothing is
    /// charged then.
    fn charge_all(&self, id: MemcgId, pages: u32, margin: u64) -> Result<(), OverLimit> {
        for at in self.ancestors(id) {
            let memcg = self.memcg(at);
            let now = memcg.charged.fetch_add(pages as u64, Relaxed) + pages as u64;
            if now > memcg.limit.load(Relaxed).saturating_sub(margin) {
                memcg.charged.fetch_sub(pages as u64, Relaxed);
                for undo in self.ancestors(id).take_while(|ancestor| *ancestor != at) {
                    self.memcg(undo).charged.fetch_sub(pages as u64, Relaxed);
                }
                return Err(OverLimit(at));
            }
            if now > memcg.peak.load(Relaxed) {
                memcg.peak.fetch_max(now, Relaxed);
            }
        }
        Ok(())
    }

    /// Charges a memcg and its ancestors without regard to their limits.
    pub(super) fn charge_beyond(&self, id: MemcgId, pages: u32) {
        for at in self.ancestors(id) {
            let memcg = self.memcg(at);
            let now = memcg.charged.fetch_add(pages as u64, Relaxed) + pages as u64;
            memcg.peak.fetch_max(now, Relaxed);
        }
    }

    /// Uncharges a memcg and its ancestors.
    pub(super) fn uncharge_all(&self, id: MemcgId, pages: u32) {
        for at in self.ancestors(id) {
            self.memcg(at).charged.fetch_sub(pages as u64, Relaxed);
        }
    }

    /// Charges a memcg and its ancestors. At a limit, drains (uncharges) the stocks of the full
    /// memcg's and its descendants' lruvecs until the charge succeeds (Linux: `drain_all_stock`).
    /// Takes the locks of stocked lruvecs, one at a time: the caller holds no lruvec's lock.
    ///
    /// # Errors
    /// The memcg that is full even though the stocks below it are empty.
    #[cold]
    pub(super) fn charge<P: Platform>(&self, frames: &Frames<'p, P>, id: MemcgId, pages: u32) -> Result<(), OverLimit> {
        let Err(mut over) = self.charge_all(id, pages, 0) else { return Ok(()) };
        let mut empty = 0;
        // Each pass drains the stocks below one full memcg. Once that one allows the charge,
        // another memcg on the way to the root may be full.
        loop {
            let full = over.0;
            for lruvec in self.stocked_lruvecs(full) {
                match self.drain_stock(frames, lruvec) {
                    0 => empty += 1,
                    _ => match self.charge_all(id, pages, 0) {
                        Ok(()) => return Ok(()),
                        Err(next) => over = next,
                    },
                }
                if over.0 != full || empty == MAX_EMPTY_STOCKS {
                    break;
                }
            }
            if over.0 == full {
                return Err(over);
            }
        }
    }

    /// Charges a lruvec's memcg so that the lruvec's stock (pages charged in advance), which has
    /// fewer than `pages` pages, gets `pages` pages, and [`STOCK`] more if no limit is near
    /// ([`MARGIN`]). The caller holds the lruvec's lock (`lists`).
    ///
    /// # Errors
    /// A limit does not allow the missing pages. Nothing is charged then.
    #[cold]
    pub(super) fn restock(
        &self,
        (lruvec, at): (LruvecId, &PerCpuLruvec),
        lists: &mut Lruvec,
        pages: u32,
    ) -> Result<(), OverLimit> {
        at.used.store(true, Relaxed);
        let missing = pages - lists.stock;
        if self.charge_all(lruvec.memcg, missing + STOCK, MARGIN).is_ok() {
            lists.stock += missing + STOCK;
            if lists.stock_limit == 0 {
                self.mark_stocked(lruvec, lists);
            }
            return Ok(());
        }
        self.charge_all(lruvec.memcg, missing, 0)?;
        lists.stock += missing;
        Ok(())
    }

    /// Takes the pages out of a lruvec's stock (pages charged in advance) that must not stay in it,
    /// and returns their number. These are all pages, if the lruvec is not marked as stocked
    /// (allowed to keep a stock: its `stock_limit` is not 0) and a limit is near ([`MARGIN`]).
    /// Otherwise the function marks the lruvec, if it is not marked yet; and if the stock exceeds
    /// `stock_limit`, these are the pages above [`STOCK`]. The caller holds the lruvec's lock
    /// (`lists`), and uncharges the pages after it has released the lock.
    #[cold]
    pub(super) fn take_surplus(&self, lruvec: LruvecId, lists: &mut Lruvec) -> u32 {
        if lists.stock_limit == 0 {
            if self.ancestors(lruvec.memcg).any(|at| self.room_below(at, MARGIN) == 0) {
                return core::mem::take(&mut lists.stock);
            }
            self.mark_stocked(lruvec, lists);
        }
        let surplus = lists.stock.saturating_sub(STOCK);
        if lists.stock > lists.stock_limit {
            lists.stock -= surplus;
            return surplus;
        }
        0
    }

    /// Marks a lruvec, whose lock the caller holds (`lists`), as stocked: it may have a stock from
    /// now on. Sets the marks in the memcg's head and in the set of memcgs before it counts the
    /// lruvec in the memcg and its ancestors, so that a CPU that loads the count finds the marks.
    fn mark_stocked(&self, lruvec: LruvecId, lists: &mut Lruvec) {
        let LruvecId { memcg: id, index } = lruvec;
        lists.stock_limit = 2 * STOCK;
        self.memcg(id).stocked[index / 64].fetch_or(1 << (index % 64), SeqCst);
        self.stocked[usize::from(id.0) / 64].fetch_or(1 << (id.0 % 64), SeqCst);
        self.ancestors(id).for_each(|at| _ = self.memcg(at).stocks.fetch_add(1, SeqCst));
    }

    /// Uncharges a lruvec's stock (pages charged in advance), and removes its mark as stocked.
    /// Takes the lruvec's lock. Returns the number of pages uncharged.
    fn drain_stock<P: Platform>(&self, frames: &Frames<'p, P>, lruvec: LruvecId) -> u32 {
        let LruvecId { memcg: id, index } = lruvec;
        let drained = self.with_lruvec(frames, lruvec, |at| {
            let mut lists = at.lock(frames.platform());
            if core::mem::take(&mut lists.stock_limit) != 0 {
                let stocked = &self.memcg(id).stocked;
                stocked[index / 64].fetch_and(!(1 << (index % 64)), SeqCst);
                self.ancestors(id).for_each(|at| _ = self.memcg(at).stocks.fetch_sub(1, SeqCst));
                let memcgs = &self.stocked[usize::from(id.0) / 64];
                if stocked.iter().all(|word| word.load(SeqCst) == 0) {
                    memcgs.fetch_and(!(1 << (id.0 % 64)), SeqCst);
                    // Between the look at the words and the clearing of the bit, another CPU may
                    // have marked one of the memcg's lruvecs. Then the bit is set again.
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

    /// Uncharges the stocks of a memcg and its descendants (the pages that their lruvecs have
    /// charged in advance). After that, a limit that was set before the call holds for each
    /// allocation. Takes the lock of each stocked lruvec, one at a time.
    ///
    /// # Errors
    /// There is no such memcg.
    pub fn drain<P: Platform>(&self, frames: &Frames<'p, P>, id: MemcgId) -> Result<(), MemcgError> {
        self.find(id).ok_or(MemcgError::NoSuchMemcg(id))?;
        self.stocked_lruvecs(id).for_each(|lruvec| _ = self.drain_stock(frames, lruvec));
        Ok(())
    }

    /// Returns the lruvecs of a memcg and its descendants that are marked as stocked: only these
    /// may have a stock of pages charged in advance. Costs one load if there are none.
    fn stocked_lruvecs(&self, top: MemcgId) -> impl Iterator<Item = LruvecId> + '_ {
        let any = self.memcg(top).stocks.load(SeqCst) != 0;
        let memcgs = bits(&self.stocked).take_while(move |_| any).map(|id| MemcgId(id as u16));
        let below = memcgs.filter(move |id| self.ancestors(*id).any(|at| at == top));
        below.flat_map(|memcg| bits(&self.memcg(memcg).stocked).map(move |index| LruvecId { memcg, index }))
    }
}

/// Returns the numbers of the bits that are set in `words`. Each word is read once, when the
/// iterator comes to it.
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
