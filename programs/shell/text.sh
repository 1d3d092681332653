# Common text processing.
seq 1 20000 | awk '{ sum += $1; if ($1 % 3 == 0) three++ } END { print sum, three }'
seq 1 3000 >numbers
awk 'BEGIN { srand(7); for (i = 0; i < 3000; i++) printf "%06d line %d\n", (i * 7919) % 100003, i }' >lines
sort lines | md5sum
sort -k3 -n -r lines | head -n 3
grep -c '7' numbers
grep -E '^(1|2)9+$' numbers
sed -e 's/\([0-9]\)\([0-9]\)$/\2\1/' numbers | tail -n 2
cut -d ' ' -f 3 lines | sort -n | uniq -c | awk '$1 != 1' | wc -l
tr 0-9 a-j <numbers | sort | tail -n 2
paste numbers numbers | head -n 2
wc lines
