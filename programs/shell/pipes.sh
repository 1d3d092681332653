# Pipes, loops, substitutions, statuses and signals.
seq 1 5000 | while read n; do echo $((n * n)); done | tail -n 3
echo "$(seq 1 100 | sed -n '/7/p' | tr '\n' ' ')"
total=0
for i in 1 2 3 4 5 6 7 8 9 10; do total=$((total + i)); done
echo "total $total"
yes | head -n 20000 | wc -c
seq 1 20000 | sort -rn | uniq | head -n 2
false || echo "false failed with $?"
(exit 42)
echo "a subshell's status: $?"
sh -c 'kill -TERM $$'
echo "a signal's: $?"
no-such-command 2>/dev/null
echo "a missing command's: $?"
trap 'echo trapped' USR1
kill -USR1 $$
(sleep 1; echo late) | cat & wait
{ echo out; echo err >&2; } 2>&1 | sort
cat <<EOF | rev
here is a document
EOF
echo a b c | (read x y; echo "$y-$x")
