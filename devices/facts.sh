# What a reader of a row must know of a device: one KEY=VALUE a line, only what the device tells. POSIX sh, for the
# shells of Linux and Android; a file that may not be read is left out. Small files are read by the shell itself, since a
# phone has dozens of thermal zones, and it is asked before and after every sample.
exec 2>/dev/null
tell() { [ -n "$2" ] && echo "$1=$2"; }
of() { line=; read -r line <"$1"; }
each() { for core in /sys/devices/system/cpu/cpu[0-9]*; do of "$core/cpufreq/$1" && printf '%s ' "$line"; done; }
tell system "$(uname -s -r -m)"
tell cpu "$(sed -n -e '/^model name/{s/[^:]*: *//p;q' -e '}' -e '/^Hardware/{s/[^:]*: *//p;q' -e '}' /proc/cpuinfo)"
tell cpus "$(env -u OMP_NUM_THREADS nproc)"
tell memory_kib "$(sed -n 's/^MemTotal: *\([0-9]*\) kB/\1/p' /proc/meminfo)"
of /proc/loadavg && tell load "${line%% *}"
tell max_khz "$(each cpuinfo_max_freq)"
tell limit_khz "$(each scaling_max_freq)"
tell khz "$(each scaling_cur_freq)"
tell governor "$(each scaling_governor)"
for zone in /sys/class/thermal/thermal_zone*; do
  of "$zone/type" && type=$line && of "$zone/temp" && tell "zone.$type" "$line"
done
[ -r /proc/device-tree/model ] && tell model "$(tr -d '\000' </proc/device-tree/model)"
if command -v getprop >/dev/null; then
  getprop | sed -n \
    -e 's/^\[ro.product.model\]: \[\(..*\)\]/model=\1/p' \
    -e 's/^\[ro.soc.model\]: \[\(..*\)\]/soc=\1/p' \
    -e 's/^\[ro.board.platform\]: \[\(..*\)\]/board=\1/p' \
    -e 's/^\[ro.build.version.release\]: \[\(..*\)\]/android=\1/p' \
    -e 's/^\[ro.build.fingerprint\]: \[\(..*\)\]/build=\1/p'
  dumpsys battery | sed -n -e 's/^ *level: /battery_percent=/p' -e 's/^ *temperature: /battery_decidegrees=/p'
  dumpsys thermalservice | sed -n 's/^Thermal Status: /thermal_status=/p'
  tell airplane_mode "$(settings get global airplane_mode_on)"
fi
true
