//! Controls the sizes of the folios of shared memory: page-cache objects without a store. Linux's
//! settings `shmem_enabled` and the mount option `huge` of tmpfs, by their names.

use core::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};

use super::HUGE_ORDER;
use super::policy::Advice;

/// A setting: of the machine (`transparent_hugepage/shmem_enabled`), of a size
/// (`hugepages-<size>kB/shmem_enabled`) or of a file system (`huge=`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum ShmemKnob {
    /// The size is not used.
    #[default]
    Never = 0,
    /// The size is used in VMAs with `MADV_HUGEPAGE`.
    Advise = 1,
    /// The size is used where a folio lies within the object, and as for [`ShmemKnob::Advise`].
    WithinSize = 2,
    /// The size is used everywhere. A folio may reach beyond the end of its object.
    Always = 3,
    /// Of a size: the machine's setting applies. Elsewhere like [`ShmemKnob::Never`].
    Inherit = 4,
    /// Of the machine: no object has large folios, whatever the other settings are. Elsewhere like
    /// [`ShmemKnob::Never`].
    Deny = 5,
    /// Of the machine: all objects have huge folios, and those of sizes that inherit. Elsewhere
    /// like [`ShmemKnob::Always`].
    Force = 6,
}

impl ShmemKnob {
    /// All settings.
    pub const ALL: [ShmemKnob; 7] = [
        ShmemKnob::Never,
        ShmemKnob::Advise,
        ShmemKnob::WithinSize,
        ShmemKnob::Always,
        ShmemKnob::Inherit,
        ShmemKnob::Deny,
        ShmemKnob::Force,
    ];

    /// Returns the name that Linux uses for the setting.
    pub const fn name(self) -> &'static str {
        match self {
            ShmemKnob::Never => "never",
            ShmemKnob::Advise => "advise",
            ShmemKnob::WithinSize => "within_size",
            ShmemKnob::Always => "always",
            ShmemKnob::Inherit => "inherit",
            ShmemKnob::Deny => "deny",
            ShmemKnob::Force => "force",
        }
    }

    /// Reads a setting; a value that stands for no setting reads as [`ShmemKnob::Never`].
    fn load(cell: &AtomicU8) -> ShmemKnob {
        Self::ALL.get(usize::from(cell.load(Relaxed))).copied().unwrap_or_default()
    }
}

/// The settings that decide the sizes of an object's folios
/// ([`Object::set_folios`](crate::page_cache::Object::set_folios)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShmemFolios {
    /// Those of the sizes: shared anonymous memory, memfds, and System V shared memory.
    #[default]
    Sizes,
    /// This one, for huge folios: files of a file system in memory.
    Own(ShmemKnob),
}

impl ShmemFolios {
    /// Returns the value as a byte.
    pub(crate) fn encode(self) -> u8 {
        match self {
            ShmemFolios::Sizes => u8::MAX,
            ShmemFolios::Own(knob) => knob as u8,
        }
    }

    /// Reads what [`ShmemFolios::encode`] returned.
    pub(crate) fn load(cell: &AtomicU8) -> Self {
        match cell.load(Relaxed) {
            u8::MAX => ShmemFolios::Sizes,
            _ => ShmemFolios::Own(ShmemKnob::load(cell)),
        }
    }
}

/// The orders, as bit sets, of the folios that may be inserted into an object besides single pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ShmemOrders {
    /// Those of folios within the object.
    pub(crate) within_size: u32,
    /// Those of folios anywhere.
    pub(crate) always: u32,
}

impl ShmemOrders {
    /// Returns the orders that one of `orders` gets by a setting, where faults have this advice.
    fn of(orders: u32, knob: ShmemKnob, advice: Advice) -> Self {
        match knob {
            _ if advice == Advice::NoHuge => ShmemOrders::default(),
            ShmemKnob::Always | ShmemKnob::Force => ShmemOrders { within_size: 0, always: orders },
            ShmemKnob::Advise | ShmemKnob::WithinSize if advice == Advice::Huge => {
                ShmemOrders { within_size: 0, always: orders }
            }
            ShmemKnob::WithinSize => ShmemOrders { within_size: orders, always: 0 },
            ShmemKnob::Advise | ShmemKnob::Never | ShmemKnob::Inherit | ShmemKnob::Deny => ShmemOrders::default(),
        }
    }

    /// Returns all orders.
    pub(crate) fn any(self) -> u32 {
        self.within_size | self.always
    }
}

/// The settings of shared memory. By default Linux's: 2 MiB inherits the machine's setting, which
/// is never; other sizes are never used.
#[derive(Debug)]
pub struct ShmemPolicy {
    /// The machine's setting.
    machine: AtomicU8,
    /// The setting of each order.
    sizes: [AtomicU8; HUGE_ORDER as usize + 1],
    /// The orders of the sizes that have each setting, as bit sets, inherited ones resolved.
    by_knob: [AtomicU32; 4],
}

impl Default for ShmemPolicy {
    fn default() -> Self {
        let policy = ShmemPolicy { machine: AtomicU8::new(0), sizes: Default::default(), by_knob: Default::default() };
        policy.set(HUGE_ORDER, ShmemKnob::Inherit);
        policy
    }
}

impl ShmemPolicy {
    /// Sets the machine's setting. [`ShmemKnob::Inherit`] means never here.
    pub fn set_machine(&self, knob: ShmemKnob) {
        self.machine.store(knob as u8, Relaxed);
        self.update();
    }

    /// Returns the machine's setting.
    pub fn machine(&self) -> ShmemKnob {
        ShmemKnob::load(&self.machine)
    }

    /// Sets the setting of one order. Only orders 1 to [`HUGE_ORDER`] have one; the call is ignored
    /// for others.
    pub fn set(&self, order: u8, knob: ShmemKnob) {
        if let (1.., Some(cell)) = (order, self.sizes.get(usize::from(order))) {
            cell.store(knob as u8, Relaxed);
            self.update();
        }
    }

    /// Returns the setting of one order; [`ShmemKnob::Never`] for an order without one.
    pub fn get(&self, order: u8) -> ShmemKnob {
        self.sizes.get(usize::from(order)).map_or(ShmemKnob::Never, ShmemKnob::load)
    }

    /// Recomputes the orders by setting. An administrator changes one setting at a time; two
    /// concurrent changes may leave the result of either until the next change.
    fn update(&self) {
        let machine = self.machine();
        let resolved = |knob| match (machine, knob) {
            (ShmemKnob::Deny, _) => ShmemKnob::Never,
            (ShmemKnob::Force, ShmemKnob::Inherit) => ShmemKnob::Always,
            (ShmemKnob::Force, _) => ShmemKnob::Never,
            (_, ShmemKnob::Inherit) => machine,
            (_, ShmemKnob::Force) => ShmemKnob::Always,
            (_, own) => own,
        };
        for (knob, set) in ShmemKnob::ALL.iter().zip(&self.by_knob) {
            let orders = (1..=HUGE_ORDER).filter(|order| resolved(self.get(*order)) == *knob);
            set.store(orders.fold(0, |set, order| set | 1 << order), Relaxed);
        }
    }

    /// Returns the orders of the folios that may be inserted into an object with these settings,
    /// for a fault in a VMA with this advice, or for a write, which has none (Linux:
    /// `shmem_allowable_huge_orders`).
    pub(crate) fn orders(&self, folios: ShmemFolios, advice: Advice) -> ShmemOrders {
        let huge = 1 << HUGE_ORDER;
        match (folios, self.machine()) {
            (ShmemFolios::Sizes, _) => {
                let orders = |knob: ShmemKnob| ShmemOrders::of(self.by_knob[knob as usize].load(Relaxed), knob, advice);
                let all = [ShmemKnob::Advise, ShmemKnob::WithinSize, ShmemKnob::Always].map(orders);
                all.into_iter().fold(ShmemOrders::default(), |sum, orders| ShmemOrders {
                    within_size: sum.within_size | orders.within_size,
                    always: sum.always | orders.always,
                })
            }
            (ShmemFolios::Own(knob), machine) if !matches!(machine, ShmemKnob::Deny | ShmemKnob::Force) => {
                ShmemOrders::of(huge, knob, advice)
            }
            (ShmemFolios::Own(_), machine) => ShmemOrders::of(huge, machine, advice),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HUGE: u32 = 1 << HUGE_ORDER;

    /// Returns the orders within the object, and anywhere, without advice and with that for huge
    /// folios.
    fn orders(policy: &ShmemPolicy, folios: ShmemFolios) -> [[u32; 2]; 2] {
        [Advice::None, Advice::Huge].map(|advice| {
            assert_eq!(policy.orders(folios, Advice::NoHuge), ShmemOrders::default());
            let orders = policy.orders(folios, advice);
            [orders.within_size, orders.always]
        })
    }

    #[test]
    fn each_size_has_its_own_setting_or_inherits() {
        let policy = ShmemPolicy::default();
        assert_eq!(orders(&policy, ShmemFolios::Sizes), [[0, 0], [0, 0]]);
        policy.set(2, ShmemKnob::Always);
        policy.set(3, ShmemKnob::WithinSize);
        policy.set(4, ShmemKnob::Advise);
        policy.set(5, ShmemKnob::Deny);
        policy.set(6, ShmemKnob::Force);
        assert_eq!(orders(&policy, ShmemFolios::Sizes), [[8, 4 | 64], [0, 4 | 8 | 16 | 64]]);
        policy.set_machine(ShmemKnob::WithinSize);
        assert_eq!(orders(&policy, ShmemFolios::Sizes), [[8 | HUGE, 4 | 64], [0, 4 | 8 | 16 | 64 | HUGE]]);
        // They concern no file system.
        assert_eq!(orders(&policy, ShmemFolios::Own(ShmemKnob::Advise)), [[0, 0], [0, HUGE]]);
    }

    #[test]
    fn the_machine_denies_and_forces_all() {
        let policy = ShmemPolicy::default();
        policy.set(2, ShmemKnob::Always);
        let all = [ShmemFolios::Sizes, ShmemFolios::Own(ShmemKnob::Always)];
        policy.set_machine(ShmemKnob::Deny);
        assert_eq!(all.map(|folios| orders(&policy, folios)), [[[0, 0]; 2]; 2]);
        policy.set_machine(ShmemKnob::Force);
        assert_eq!(all.map(|folios| orders(&policy, folios)), [[[0, HUGE]; 2]; 2]);
        let never = ShmemFolios::Own(ShmemKnob::Never);
        assert_eq!(orders(&policy, never), [[0, HUGE]; 2]);
    }

    #[test]
    fn an_object_keeps_its_settings() {
        let cases = ShmemKnob::ALL.map(ShmemFolios::Own);
        for folios in cases.into_iter().chain([ShmemFolios::Sizes]) {
            assert_eq!(ShmemFolios::load(&AtomicU8::new(folios.encode())), folios);
        }
    }
}
