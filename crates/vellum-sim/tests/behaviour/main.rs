//! The engine's behaviour, by operation.
//!
//! The folders follow the engine's (`vellum/src`), down to the operation. In the folder of an
//! operation a file is named by the technique of its tests:
//!
//! | file | technique |
//! |---|---|
//! | `strict` | one CPU at work on the strict machine, which checks every event of the engine |
//! | `schedules` | several CPUs, mostly under a deterministic scheduler |
//! | `random` | random operations against a model |
//! | `refusals` | one request refused at a time: allocations, slots, references, device I/O |
//! | `fast` | the fast machine, for tests that need many CPUs, much memory or many rounds |
//!
//! Two folders belong to no single operation: `random` (operations on the whole engine against a
//! model of plain maps, and `./x fuzz`), and `liveness` (every operation ends beside all others).
//! `fixtures` holds machines, models and helpers that several files use.
//!
//! All of it is one test target, because each target compiles the engine anew for every machine and
//! every format of page tables.

mod fixtures;

mod arch {
    mod stale {
        mod strict;
    }
    mod user_half {
        mod strict;
    }
}
mod audit {
    mod strict;
}
mod frame {
    mod nodes {
        mod strict;
    }
    mod order {
        mod fast;
    }
}
#[cfg(feature = "shuttle")]
mod liveness {
    mod schedules;
}
mod memcg {
    mod charge {
        mod fast;
        mod strict;
    }
}
mod page_cache {
    mod fault_around {
        mod strict;
    }
    mod formats {
        mod strict;
    }
    mod huge {
        mod schedules;
        mod strict;
    }
    mod hugetlb {
        mod strict;
    }
    mod private_copies {
        mod strict;
    }
    mod random;
    mod reclaim {
        mod refusals;
        #[cfg(feature = "shuttle")]
        mod schedules;
        mod strict;
    }
    mod store {
        mod around;
        mod fixture;
        mod hold;
        mod huge;
        mod in_memory;
        mod overwrite;
        mod schedules;
        mod strict;
        mod throttle;
        mod working_set;
        mod write_schedules;
        mod writes;
    }
    mod truncate {
        mod schedules;
    }
}
mod random {
    mod arrays;
    mod operations;
}
mod reclaim {
    mod compact;
    #[cfg(feature = "shuttle")]
    mod schedules;
    mod strict;
}
mod space {
    mod fault {
        mod cow {
            #[cfg(feature = "shuttle")]
            mod schedules;
            mod strict;
        }
        mod growth {
            mod strict;
        }
        mod swap_in {
            mod strict;
        }
        mod zeros {
            mod fast;
            mod strict;
        }
    }
    mod fork {
        #[cfg(feature = "shuttle")]
        mod schedules;
        mod strict;
    }
    mod observe {
        mod usage {
            mod strict;
        }
    }
    mod pin {
        mod strict;
    }
    mod reclaim {
        mod lazyfree {
            #[cfg(feature = "shuttle")]
            mod fork_schedules;
            #[cfg(feature = "shuttle")]
            mod schedules;
            mod strict;
        }
        mod pageout {
            mod strict;
        }
        mod rmap {
            mod strict;
        }
        mod swap_out {
            mod refusals;
            #[cfg(feature = "shuttle")]
            mod schedules;
            mod strict;
        }
    }
    mod thp {
        mod collapse {
            mod strict;
        }
        #[cfg(feature = "shuttle")]
        mod schedules;
        mod split {
            mod strict;
        }
    }
    mod uffd {
        mod moves {
            mod strict;
        }
        mod objects {
            mod strict;
        }
        #[cfg(feature = "shuttle")]
        mod schedules;
        mod strict;
    }
    mod vma_ops {
        mod advise {
            mod strict;
        }
        #[cfg(feature = "shuttle")]
        mod claims {
            mod schedules;
        }
        mod guard {
            mod strict;
        }
        mod keys {
            mod strict;
        }
        mod remap {
            #[cfg(feature = "shuttle")]
            mod schedules;
            mod strict;
        }
        #[cfg(feature = "shuttle")]
        mod schedules;
    }
}
mod swap {
    mod cache {
        #[cfg(feature = "shuttle")]
        mod schedules;
        mod strict;
    }
    #[cfg(feature = "shuttle")]
    mod devices {
        mod schedules;
    }
    mod slots {
        mod strict;
    }
    mod swapoff {
        mod strict;
    }
}
mod table {
    mod cont_block {
        mod strict;
    }
    mod full {
        mod strict;
    }
}
#[cfg(feature = "shuttle")]
mod tlb {
    mod gather {
        mod fast;
    }
    mod shootdown {
        mod schedules;
    }
}
