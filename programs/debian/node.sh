# A server with 60 requests, files, three commands.
cd /tmp; cat > a.js <<'X'
const http = require('http'), fs = require('fs'), cp = require('child_process');
const s = http.createServer((q, r) => { let n = 0; q.on('data', d => n += d.length); q.on('end', () => r.end('got ' + n)); });
s.listen(0, '127.0.0.1', async () => {
  const port = s.address().port;
  const one = i => new Promise((ok, no) => { const q = http.request({ port, host: '127.0.0.1', method: 'POST' }, r => { let t = ''; r.on('data', d => t += d); r.on('end', () => ok(t)); }); q.on('error', no); q.end('x'.repeat(i)); });
  for (let i = 0; i < 60; i++) { const t = await one(i); if (t !== 'got ' + i) process.exit(1); }
  for (let i = 0; i < 30; i++) { fs.writeFileSync('/tmp/n' + i, 'y'.repeat(5000)); if (fs.readFileSync('/tmp/n' + i).length !== 5000) process.exit(2); }
  for (let i = 0; i < 3; i++) cp.execSync('true');
  s.close(); console.log('node ok');
});
X
node a.js
