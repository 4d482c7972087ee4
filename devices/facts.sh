# What a reader of a row must know of a device: one KEY=VALUE a line, only what the device tells. POSIX sh, for the
# shells of Linux and Android; a file that may not be read is left out.
tell() { [ -n "$2" ] && echo "$1=$2"; }
of() { cat "$1" 2>/dev/null; }
each() { for core in /sys/devices/system/cpu/cpu[0-9]*; do of "$core/cpufreq/$1"; done | tr '\n' ' '; }
tell system "$(uname -s) $(uname -r) $(uname -m)"
tell cpu "$(sed -n -e 's/^model name[[:space:]]*: *//p' -e 's/^Hardware[[:space:]]*: *//p' /proc/cpuinfo | head -n 1)"
tell cpus "$(env -u OMP_NUM_THREADS nproc)"
tell memory_kib "$(sed -n 's/^MemTotal: *\([0-9]*\) kB/\1/p' /proc/meminfo)"
tell load "$(of /proc/loadavg | cut -d ' ' -f 1)"
tell max_khz "$(each cpuinfo_max_freq)"
tell limit_khz "$(each scaling_max_freq)"
tell khz "$(each scaling_cur_freq)"
tell governor "$(each scaling_governor | tr ' ' '\n' | sort -u | tr '\n' ' ')"
for zone in /sys/class/thermal/thermal_zone*; do
  type=$(of "$zone/type")
  tell "zone.$type" "$(of "$zone/temp")"
done
[ -r /proc/device-tree/model ] && tell model "$(tr -d '\000' </proc/device-tree/model)"
if command -v getprop >/dev/null; then
  tell model "$(getprop ro.product.model)"
  tell soc "$(getprop ro.soc.model)"
  tell board "$(getprop ro.board.platform)"
  tell android "$(getprop ro.build.version.release)"
  tell build "$(getprop ro.build.fingerprint)"
  tell battery_percent "$(dumpsys battery | sed -n 's/^ *level: //p')"
  tell battery_decidegrees "$(dumpsys battery | sed -n 's/^ *temperature: //p')"
  tell thermal_status "$(dumpsys thermalservice | sed -n 's/^Thermal Status: //p')"
  tell airplane_mode "$(settings get global airplane_mode_on)"
fi
true
