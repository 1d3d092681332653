# A server and a client in Python: 1,000 values stored and read back.
cat > /tmp/m.py <<'P'
import socket,subprocess,time
p=subprocess.Popen(['memcached','-u','root','-l','127.0.0.1','-p','11211','-t','2'])
for i in range(100):
    try: c=socket.create_connection(('127.0.0.1',11211)); break
    except OSError: time.sleep(0.05)
f=c.makefile('rwb')
for i in range(1000):
    f.write(b'set k%d 0 0 100\r\n%s\r\n'%(i,b'x'*100)); f.flush(); assert f.readline()==b'STORED\r\n'
for i in range(1000):
    f.write(b'get k%d\r\n'%i); f.flush(); assert f.readline().startswith(b'VALUE'); f.readline(); assert f.readline()==b'END\r\n'
print('memcached ok'); p.terminate(); p.wait()
P
python3 /tmp/m.py
