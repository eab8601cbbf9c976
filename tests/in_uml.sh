#!/bin/bash
# in_uml.sh SECONDS FOLDER COMMAND…: a command as root in User-Mode Linux, on this machine's own files.
# They are read-only there, under a layer in memory; FOLDER alone is written through. The exit status is the command's,
# or 125 when there was none.
set -u
limit=$1 folder=$(readlink -f "$2"); shift 2
rm -f "$folder/status"
printf '%q ' "$@" > "$folder/command"; pwd > "$folder/cwd"; export -p > "$folder/environment"
cat > "$folder/init" <<'INIT'
#!/bin/bash
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
if [ "${1-}" != inside ]; then
  mount -n -t proc proc /proc
  for word in $(cat /proc/cmdline); do case $word in folder=*) folder=${word#folder=};; esac; done
  busybox insmod "/usr/lib/uml/modules/$(uname -r)/kernel/fs/overlayfs/overlay.ko"
  mount -n -t tmpfs tmp /mnt && mkdir /mnt/upper /mnt/work /mnt/root
  mount -n -t overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work overlay /mnt/root || busybox poweroff -f
  cd /mnt/root && mkdir -p share
  mount -n -t proc proc proc; mount -n -t sysfs sys sys; mount -n -t devtmpfs dev dev || mount -n --rbind /dev dev
  mkdir -p dev/shm; mount -n -t tmpfs shm dev/shm; mount -n -t tmpfs run run
  mount -n -t hostfs -o "$folder" none share
  mkdir -p usr/lib/modules; mount -n --bind usr/lib/uml/modules usr/lib/modules
  [ -e usr/sbin/modprobe ] || ln -s ../bin/busybox usr/sbin/modprobe
  ln -sfn /proc/self/fd dev/fd
  exec chroot . /bin/bash /share/init inside
fi
. /share/environment
cd "$(cat /share/cwd)"; ip link set lo up
# The kernel's own modprobe has none of our environment, so it could use AVX.
if [ -n "${GLIBC_TUNABLES-}" ]; then
  for module in veth dummy macvlan 8021q loop $(cd "/usr/lib/modules/$(uname -r)/kernel/net/sched" && ls); do
    busybox modprobe "${module%.ko}" 2> /dev/null
  done
fi
eval "$(cat /share/command)"
echo $? > /share/status
sync; busybox poweroff -f
INIT
chmod +x "$folder/init"
TMPDIR=/dev/shm timeout "$limit" linux.uml mem=1024M rootfstype=hostfs rootflags=/ ro "init=$folder/init" \
  "folder=$folder" con=null con0=fd:0,fd:1 quiet loglevel=3 ${KERNEL_WORDS-} < /dev/null 2> "$folder/errors"
exit "$(cat "$folder/status" 2> /dev/null || echo 125)"
