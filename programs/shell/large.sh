# vellum run --mem 64M --swap 256M
# Pipelines of programs that together need more memory than the machine has.
lines() { awk 'BEGIN { for (i = 0; i < '$1'; i++) printf "%-250d\n", i * 7919 % '$1' }'; }
lines 100000 | sort -n | tail -c 20000000 | gzip | gunzip | md5sum
# The same twice over: both halves stay in memory until the merge has read the other.
{ lines 60000 | sort -n; lines 40000 | sort -rn; } | sort -n -u | awk '{ s += $1 * NR } END { printf "%d %.0f\n", NR, s }'
awk 'BEGIN { for (i = 0; i < 100000; i++) a[i] = "entry " i; for (i = 99999; i >= 0; i--) n += length(a[i]); print n }'
