# 15,000 rows in WAL mode, updates, queries, integrity_check.
cd /tmp; export HOME=/tmp; sqlite3 t.db <<'X'
pragma journal_mode=wal; pragma synchronous=normal; create table t(a integer primary key,b,c text); create index i on t(b);
with recursive c(x) as (select 1 union all select x+1 from c where x<15000) insert into t select x,x*x%1009,hex(x) from c;
X
for i in $(seq 10); do echo "begin; update t set b=b+1 where a%10=$i%10; commit; select count(*),sum(b) from t;"; done | sqlite3 t.db | tail -1
sqlite3 t.db "pragma journal_mode=delete"; for i in 1 2 3 4 5; do sqlite3 t.db "insert into t values(null,$i,'x')"; done; [ "$(sqlite3 t.db "pragma integrity_check")" = ok ]
