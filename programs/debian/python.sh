# Imports, JSON, subprocesses, forks, a pool of two, a file of 20,000 lines; three times.
cd /tmp; cat > a.py <<'X'
import json, re, subprocess, os, asyncio, http.client, email, sqlite3, unittest, decimal, ctypes, xml.etree.ElementTree, concurrent.futures, multiprocessing
def work(n): return sum(i*i for i in range(n))
if __name__ == '__main__':
    d = [{'k%d' % i: list(range(i % 20))} for i in range(3000)]
    assert json.loads(json.dumps(d)) == d
    for i in range(6): assert subprocess.run(['/bin/echo', str(i)], capture_output=True).stdout == b'%d\n' % i
    for i in range(6):
        pid = os.fork()
        if pid == 0: os._exit(sum(range(1000)) & 7)
        os.waitpid(pid, 0)
    with multiprocessing.Pool(2) as p: print(sum(p.map(work, [1000] * 20)))
    with open('/tmp/t', 'w') as f:
        for i in range(20000): f.write('line %d\n' % i)
    print(sum(len(l) for l in open('/tmp/t')))
X
for i in 1 2 3; do python3 a.py; done
