# Two workers, 300 small files and 10 of 200 kB over 10 connections.
mkdir -p /tmp/n/logs; cd /tmp/n; head -c 200000 /dev/zero | tr '\0' x > f.bin; echo small > s.txt
cat > c.conf <<X
worker_processes 2; pid /tmp/n/pid; error_log /tmp/n/err; user root;
events { worker_connections 100; }
http { access_log /tmp/n/acc; sendfile on; server { listen 127.0.0.1:8080; root /tmp/n; } }
X
nginx -p /tmp/n -c /tmp/n/c.conf || exit 1
python3 - <<P
import http.client
d=open('/tmp/n/f.bin','rb').read()
for k in range(10):
    c=http.client.HTTPConnection('127.0.0.1',8080)
    for i in range(30):
        c.request('GET','/s.txt'); assert c.getresponse().read()==b'small\n'
    c.request('GET','/f.bin'); assert c.getresponse().read()==d
    c.close()
print('nginx ok')
P
kill $(cat /tmp/n/pid); sleep 0.3
