#!/bin/sh
# First process of a machine whose root is the host's files: kernel modules, then the script named on the
# kernel's command line, whose end is the machine's.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs /run
modules=/usr/lib/uml/modules/$(uname -r)/kernel
for module in lib/crc-ccitt net/ipv6/ipv6 net/core/failover drivers/net/net_failover drivers/net/virtio_net; do
  busybox insmod "$modules/$module.ko"
done

# The interface: by DHCP, as configured by its script, which busybox runs with the lease in variables.
cat >/run/lease <<'EOF'
#!/bin/sh
[ "$1" = bound ] || exit 0
ip link set "$interface" mtu "$mtu"
ip address add "$ip/$mask" dev "$interface"
ip route add default via "$router"
echo "LEASE $ip $mtu $dns"
EOF
chmod +x /run/lease
# A device that is gone, or never came, ends the machine with the kernel's reasons.
end_without() {
  dmesg | tail -n 20
  echo "NO DEVICE $1"
  busybox poweroff -f
}
network() {
  [ -e "/sys/class/net/$1" ] || end_without "$1"
  ip link set lo up
  ip link set "$1" up
  busybox udhcpc -i "$1" -q -n -s /run/lease
  # The address of a router advertisement, once no other host claims it.
  until ip -6 address show dev "$1" scope global -tentative | grep -q inet6; do
    [ -e "/sys/class/net/$1" ] || end_without "$1"
    sleep 0.1
  done
}

# One transfer by the probe, compared at both ends.
transfer() {
  echo "TRANSFER $* $("$PROBE" probe "$@")"
}

. "$SCRIPT"
busybox poweroff -f
