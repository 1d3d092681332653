//! The translation caches of real cores.
//!
//! Vendors publish how many entries there are, seldom how many ways, and hardly ever the caches of
//! walks. [`TlbModel::source`] of every model cites the source of its numbers (and the text that
//! quotes it where the vendor's own was not at hand), and lists the assumed ones. All models
//! replace the least recently used entry, whatever the core does; loads and stores share a data
//! side.

use crate::model::{ALL, CODE, DATA, PagingCache, TlbModel, bank, paging};

/// Sizes that the TLBs of Arm's cores hold: log2 of the bytes of pages and cont blocks of all
/// granules. A larger leaf is cached in parts, one entry for each.
const ARM_CODE: &[u32] = &[12, 14, 16, 21, 25];
const ARM_DATA: &[u32] = &[12, 14, 16, 21, 25, 29];
const ARM_BOTH: &[u32] = &[12, 14, 16, 21, 25, 29, 30];

impl TlbModel {
    /// Arm Cortex-A76.
    pub const CORTEX_A76: TlbModel = TlbModel::fixed(
        "cortex-a76",
        "Arm Cortex-A76 TRM (100798), MMU: L1 instruction and data TLBs of 48 entries, fully associative; L2 of \
         1280, 5-way, shared, whose entries hold up to 4 consecutive pages; contiguous blocks are one entry. Walks \
         are cached in the L2: 64 entries a level are assumed.",
        const {
            &[
                bank(1, CODE, ARM_CODE, 0, (1, 48)),
                bank(1, DATA, ARM_DATA, 0, (1, 48)),
                bank(2, ALL, ARM_BOTH, 2, (256, 5)),
            ]
        },
        ARM_WALKS,
    );

    /// Arm Neoverse N1 (Ampere Altra, AWS Graviton 2).
    pub const NEOVERSE_N1: TlbModel = TlbModel::fixed(
        "neoverse-n1",
        "Arm at Hot Chips 31 (2019), The Arm Neoverse N1 Platform: L1 data TLB of 48 entries, fully associative, and \
         L2 of 1280, 5-way, both with page clustering, which the Cortex-A76 TRM (100798) says is 4 pages; IEEE Micro \
         (2020), quoted in UIUC's CS433: L1 instruction TLB of 48. Ampere, page size guide: an L2 of 64 KiB \
         translations reaches 80 MB, so a contiguous block is one entry. Walks are cached in the L2: 64 entries a \
         level are assumed.",
        const {
            &[
                bank(1, CODE, ARM_CODE, 0, (1, 48)),
                bank(1, DATA, ARM_DATA, 2, (1, 48)),
                bank(2, ALL, ARM_BOTH, 2, (256, 5)),
            ]
        },
        ARM_WALKS,
    );

    /// The performance core of Apple's M1.
    pub const APPLE_M1: TlbModel = TlbModel::fixed(
        "apple-m1",
        "Apple Silicon CPU Optimization Guide, quoted and measured by jia.je (apple-m1): L1 instruction TLB of 192 \
         entries, data of 160, 5-way, L2 of 3072, 12-way. 7-cpu.com, Apple M1: 24 pointers to last tables are \
         cached. Assumed: 6 ways of the instruction TLB, one entry for a contiguous block, pointers of upper \
         levels.",
        const {
            &[
                bank(1, CODE, &[12, 14, 16, 21, 25], 0, (32, 6)),
                bank(1, DATA, &[12, 14, 16, 21, 25], 0, (32, 5)),
                bank(2, ALL, &[12, 14, 16, 21, 25], 0, (256, 12)),
            ]
        },
        const { &[paging(2, 24), paging(3, 8), paging(4, 4)] },
    );

    /// Intel Skylake, as in Cascade Lake servers.
    pub const SKYLAKE: TlbModel = TlbModel::fixed(
        "skylake",
        "Intel 64 and IA-32 Architectures Optimization Reference Manual, TLB parameters of Skylake, quoted by \
         WikiChip: instruction 128 × 8-way (4K) and 8 a thread (2M); data 64 × 4-way (4K), 32 × 4-way (2M), 4 (1G); \
         second level 1536 × 12-way (4K and 2M) and 16 × 4-way (1G). Walk caches are not published: 32, 4 and 2 are \
         assumed.",
        const {
            &[
                bank(1, CODE, &[12], 0, (16, 8)),
                bank(1, CODE, &[21], 0, (1, 8)),
                bank(1, DATA, &[12], 0, (16, 4)),
                bank(1, DATA, &[21], 0, (8, 4)),
                bank(1, DATA, &[30], 0, (1, 4)),
                bank(2, ALL, &[12, 21], 0, (128, 12)),
                bank(2, ALL, &[30], 0, (4, 4)),
            ]
        },
        INTEL_WALKS,
    );

    /// Intel Sapphire Rapids (Golden Cove).
    pub const SAPPHIRE_RAPIDS: TlbModel = TlbModel::fixed(
        "sapphire-rapids",
        "Intel Optimization Reference Manual on Golden Cove, quoted and measured by jia.je (golden-cove): \
         instruction 256 × 8-way (4K) and 32 (2M); loads 96 × 6-way (4K), 32 × 4-way (2M), 8 (1G); second level \
         2048. 96 and 2048 were found by pointer chasing on such a machine, too. Left out: the 16 entries that \
         stores have to themselves. Assumed: 16 ways of the second level, which holds 1 GiB pages in parts; walk \
         caches of 32, 4, 2 and 2.",
        const {
            &[
                bank(1, CODE, &[12], 0, (32, 8)),
                bank(1, CODE, &[21], 0, (4, 8)),
                bank(1, DATA, &[12], 0, (16, 6)),
                bank(1, DATA, &[21], 0, (8, 4)),
                bank(1, DATA, &[30], 0, (1, 8)),
                bank(2, ALL, &[12, 21], 0, (128, 16)),
            ]
        },
        INTEL_WALKS,
    );

    /// AMD Zen 4, which coalesces 16 KiB of contiguous pages without a mark in the tables.
    pub const ZEN_4: TlbModel = TlbModel::fixed(
        "zen-4",
        "Chips and Cheese on Zen 4: instruction 64 (all sizes) and 512 (4K, 2M); data 72 (all sizes) and 3072, \
         24-way (4K, 2M). AnandTech on Zen (10591): four 4 KiB pages that are aligned and consecutive in both \
         address spaces, with the same attributes, are one entry. AMD's optimization guide for Zen 2, quoted by \
         Chips and Cheese and WikiChip: 64 pointers of the upper levels are cached, and pointers to last tables in \
         the second data TLB, which holds 1 GiB pages in parts. Assumed: 8 ways of the second instruction TLB, as \
         Zen 2 has; 64 pointers to last tables that have a place of their own; how the other 64 are shared out.",
        const {
            &[
                bank(1, CODE, &[12, 21, 30], 2, (1, 64)),
                bank(1, DATA, &[12, 21, 30], 2, (1, 72)),
                bank(2, CODE, &[12, 21], 2, (64, 8)),
                bank(2, DATA, &[12, 21], 2, (128, 24)),
            ]
        },
        const { &[paging(2, 64), paging(3, 32), paging(4, 16), paging(5, 16)] },
    );

    /// XiangShan Kunminghu, a RISC-V core with Svnapot.
    pub const KUNMINGHU: TlbModel = TlbModel::fixed(
        "xiangshan-kunminghu",
        "OpenXiangShan/XiangShan, MMUConst.scala (L2TLBParameters), PageTableCache.scala and XiangShan Design \
         Document, L1TLB and PageCache: L1 TLBs of 48, fully associative, an entry for up to 8 pages whose frames \
         share the upper bits, and one for a Svnapot block; second level: 32 × 8 lines of 8 last-level entries, 16 \
         huge pages or Svnapot blocks, 8 × 4 lines of 8 pointers to last tables, 16 and 16 of the levels above. Here \
         8 pages coalesce only if they are consecutive, and the eight entries of a line come and go one by one.",
        const {
            &[
                bank(1, CODE, &[12, 16, 21, 30], 3, (1, 48)),
                bank(1, DATA, &[12, 16, 21, 30], 3, (1, 48)),
                bank(2, ALL, &[12], 0, (256, 8)),
                bank(2, ALL, &[16, 21, 30], 0, (1, 16)),
            ]
        },
        const { &[paging(2, 256), paging(3, 16), paging(4, 16)] },
    );

    /// All models of this module.
    pub const CORES: &[TlbModel] = const {
        &[
            TlbModel::CORTEX_A76,
            TlbModel::NEOVERSE_N1,
            TlbModel::APPLE_M1,
            TlbModel::SKYLAKE,
            TlbModel::SAPPHIRE_RAPIDS,
            TlbModel::ZEN_4,
            TlbModel::KUNMINGHU,
        ]
    };
}

const ARM_WALKS: &[PagingCache] = &[paging(2, 64), paging(3, 64), paging(4, 64), paging(5, 64)];
const INTEL_WALKS: &[PagingCache] = &[paging(2, 32), paging(3, 4), paging(4, 2), paging(5, 2)];
