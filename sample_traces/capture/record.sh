#!/usr/bin/env bash
# Record scenarios on a machine with a GPU: Kineto traces by the stack itself, perf (and ftrace, nsys, a quota) around the load.
#
#   sample_traces/capture/record.sh OUT NAME=SCENARIO[,option=value...] ...
#
# e.g. record.sh out ipc sweep_4=sweep,cpus=4 throttled=throttled,quota=150000 seen_by_nsys=launch_eager,nsys=1
# Needs root (perf -a, tracefs, cgroup). PERF and NSYS name the programs; without one, its part is left out and said.
set -uo pipefail
OUT=$(realpath -m "$1"); shift
PERF=${PERF:-perf} NSYS=${NSYS:-nsys} HZ=${HZ:-299}
mkdir -p "$OUT"
TRACEFS=/sys/kernel/tracing
[ -e $TRACEFS/instances ] || mount -t tracefs none $TRACEFS 2>/dev/null

say() { echo "[$(date +%T)] $*"; }

perf_around() {  # folder seconds: the command that records while the load runs
  local events="-e cpu-clock/freq=$HZ/ -e sched:sched_switch/call-graph=no/ -e sched:sched_wakeup/call-graph=no/"
  echo "$PERF record -q -a -k mono -g $events -m 2048 -o $1/perf.data sleep $2 2>$1/perf.log"
}

ftrace_around() {  # folder seconds
  local at=$TRACEFS/instances/tracelib
  echo "mkdir -p $at; echo 16384 >$at/buffer_size_kb; echo mono >$at/trace_clock; echo 1 >$at/options/record-tgid; \
    echo 1 >$at/events/sched/sched_switch/enable; echo 1 >$at/events/sched/sched_wakeup/enable; echo 1 >$at/tracing_on; sleep $2; \
    echo 0 >$at/tracing_on; gzip <$at/trace >$1/ftrace.txt.gz; rmdir $at"
}

quota() {  # microseconds per 100 ms: move this shell into a cgroup of its own
  local root=/run/tracelib-cgroup
  mkdir -p $root && { mountpoint -q $root || mount -t cgroup2 none $root; } && echo +cpu >$root/cgroup.subtree_control
  mkdir -p $root/limited && echo "$1 100000" >$root/limited/cpu.max && echo "$BASHPID" >$root/limited/cgroup.procs
}

record() (  # name scenario options... (in a shell of its own, so that a quota ends with it)
  local name=$1 scenario=$2; shift 2
  local folder=$OUT/$name seconds=2.6 flags=() with_ftrace= with_nsys= stat=
  mkdir -p "$folder"
  for option in "$@"; do
    case $option in
      quota=*) quota "${option#*=}" || exit 1; stat=/run/tracelib-cgroup/limited/cpu.stat; cp /run/tracelib-cgroup/limited/cpu.max "$folder/cpu.max" ;;
      ftrace=*) with_ftrace=1 ;;
      nsys=*) with_nsys=1 ;;
      for=*) seconds=${option#*=} ;;
      *) flags+=("--$(echo "${option%%=*}" | tr _ -)" "${option#*=}") ;;
    esac
  done
  local around; around=$(perf_around "$folder" "$seconds")
  [ -n "$with_ftrace" ] && around="$around & ($(ftrace_around "$folder" "$seconds")); wait"
  [ -n "$stat" ] && around="cat $stat >$folder/cpu.stat.before; $around; cat $stat >$folder/cpu.stat.after"
  local run=(python3 -m sample_traces.capture "$scenario" --out "$folder" "${flags[@]}")
  if [ -n "$with_nsys" ]; then
    around="$NSYS start --session=tracelib -o $folder/nsys --sample=none --cpuctxsw=process-tree >>$folder/nsys.log 2>&1; sleep 14; $NSYS stop --session=tracelib >>$folder/nsys.log 2>&1"
    run=("$NSYS" launch --session-new=tracelib -t cuda,nvtx,osrt "${run[@]}" --profile nvtx --lead 6)
  fi
  timeout 90 "${run[@]}" --while-loaded "$around" >"$folder/run.log" 2>&1 || { say "$name FAILED"; tail -5 "$folder/run.log"; }
  if [ -e "$folder/perf.data" ]; then
    (cd "$folder" && $PERF script -i perf.data --header --ns -F +pid 2>perf.script.log | gzip -9 >perf.txt.gz); rm -f "$folder/perf.data"
  fi
  [ -n "$with_nsys" ] && $NSYS export -t sqlite --lazy=false -o "$folder/nsys.sqlite" "$folder"/nsys.*-rep >>"$folder/nsys.log" 2>&1 && gzip -9 "$folder/nsys.sqlite" && rm -f "$folder"/nsys.*rep
  say "$name $(du -sh "$folder" | cut -f1) $(python3 -c "import json,sys; t=json.load(open('$folder/truth.json')); print({k: t[k] for k in ('window_ms','requests','steps','tokenize_ms','dequeue_ms','on_device_ms','ttft_ms')})" 2>/dev/null)"
)

for spec in "$@"; do
  name=${spec%%=*}; rest=${spec#*=}
  IFS=, read -r scenario options <<<"$rest"
  IFS=, read -ra options <<<"${options:-}"
  record "$name" "$scenario" "${options[@]}"
done
