# A walk through directories, 30 commands, a large hash, 20 forks.
cd /tmp; cat > a.pl <<'X'
use strict; use warnings; use File::Find; use IO::File; use POSIX; use Data::Dumper;
my $n = 0; find(sub { $n++ if -f $_ }, '/usr/share/perl5', '/etc'); print "$n\n" if $n < 0;
for my $i (1..30) { my $x = `echo $i`; die if $x != $i; }
my %h; for (1..50000) { $h{"k$_"} = "v" x ($_ % 50); } my $s = 0; $s += length $h{$_} for keys %h; print "$s\n";
for (1..20) { my $p = fork; if (!$p) { $h{k1} = 2; POSIX::_exit(0) } waitpid $p, 0; }
X
perl a.pl
