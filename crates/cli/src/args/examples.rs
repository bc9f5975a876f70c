//! Examples and exit statuses below the options of `--help`, and at the end of manual pages.

/// Text of `brodo --help` below the list of commands.
pub(super) const EXAMPLES: &str = "\
Examples:
  brodo run -- curl https://example.org      # one command with a network of its own
  brodo run                                  # a shell with a network of its own
  brodo run --pcap trace.pcapng -- ./test    # and every frame in a file for Wireshark
  brodo attach 4711                          # a network for process 4711, as long as it lives
  brodo attach --netns /run/netns/blue       # the same for a namespace with a name
  brodo vm --socket /tmp/vm.sock             # a network for a virtual machine

The guest's network: an interface eth0 with the addresses 10.0.2.15 and fd00::15, a router at 10.0.2.2 and fd00::2, a \
DNS server at 10.0.2.3 and fd00::3. Its traffic leaves the host from ordinary sockets of the user that started brodo, and \
has that user's reachability, except the host's own loopback (see --map-host-loopback).";

pub(super) const RUN_EXAMPLES: &str = "\
Examples:
  brodo run -- curl https://example.org
  brodo run -4 --mtu 1500 -- ping -c1 1.1.1.1
  brodo run --address 192.168.7.5/24 -- ip addr       # router 192.168.7.2, DNS 192.168.7.3
  brodo run --map-host-loopback 10.0.2.2 -- curl 10.0.2.2:8080  # the host's own 127.0.0.1:8080
  brodo run --resolver 9.9.9.9 -v -- ./build.sh
  brodo run -t 8080:80 -- ./server                    # the guest's port 80 at the host's 8080

Exit status: the command's own, or 128 and the signal's number if a signal killed it; 126 if it cannot be executed, \
127 if it is not found; 125 if brodo itself fails; 2 if the command line is invalid; \
122 with --policy-fail.";

pub(super) const ATTACH_EXAMPLES: &str = "\
Examples:
  unshare -r -n sleep 1000 & brodo attach $!
  sudo brodo attach --netns /run/netns/blue --ifname up0
  brodo attach 4711 --ready-fd 3 3>ready  # a line appears in `ready` once the network is there

Only the network is set up: the target keeps its mounts, hence its /etc/resolv.conf (name the --dns address there).

Exit status: 0 when the target is gone or brodo was asked to end (SIGTERM, SIGINT, SIGHUP), 125 if brodo fails, \
2 if the command line is invalid.";

pub(super) const VM_EXAMPLES: &str = "\
Examples:
  brodo vm --socket /tmp/vm.sock &
  qemu-system-x86_64 ... -device virtio-net-pci,netdev=n -netdev stream,id=n,addr.type=unix,addr.path=/tmp/vm.sock
  brodo vm --dgram /tmp/vm.sock      # QEMU's -netdev dgram, vfkit
  brodo vm --seqpacket /tmp/vm.sock  # UML's vec0:transport=bess,dst=/tmp/vm.sock
  brodo vm --socket fd:3 -t 8022:22  # a connected socket, and the guest's SSH at the host's 8022

The guest gets its addresses by DHCP and router advertisements. A monitor that is started again finds its network \
where it was. The guest's own namespaces are out of reach: -T, -U, `auto` and --bulk kernel are not available, nor are \
--ifname, --tx-queue-len and --no-configure, because the guest has an interface of its own.

Exit status: 0 when brodo was asked to end (SIGTERM, SIGINT, SIGHUP) or the only monitor is gone (--one-off, fd:N), \
125 if brodo fails, 2 if the command line is invalid.";
