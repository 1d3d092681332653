# redis-benchmark over TCP and over a socket of AF_UNIX, 20,000 keys, BGSAVE three times under writes.
cd /tmp
redis-server --port 6379 --unixsocket /tmp/r.sock --dir /tmp --save "" --daemonize no >/tmp/redis.log 2>&1 &
until redis-cli ping >/dev/null 2>&1; do sleep 0.05; done
redis-benchmark -n 2000 -c 20 -t set,get,lpush -q >/dev/null
redis-benchmark -s /tmp/r.sock -n 2000 -c 20 -t get -q >/dev/null
i=0; while [ $i -lt 20000 ]; do echo "SET key:$i vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv$i"; i=$((i+1)); done | redis-cli --pipe >/dev/null
for k in 1 2 3; do redis-cli bgsave >/dev/null; redis-benchmark -n 500 -r 20000 -t set -q >/dev/null; while redis-cli info persistence | grep -q "rdb_bgsave_in_progress:1"; do sleep 0.05; done; done
redis-cli dbsize; redis-cli shutdown nosave; wait; echo redis ok
