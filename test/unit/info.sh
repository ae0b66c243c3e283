#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# hoccl-info: its JSON, its text and its exit status, on emulated GPUs, recorded machines, and where something is missing.
set -u
info=${top_builddir:?}/hoccl-info has=$top_builddir/test/unit/json_has data=${top_srcdir:?}/test/topo-data
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bad=0

# What the caller's environment says about launchers and settings is not to be seen.
for name in $(compgen -e); do
    case $name in PMIX_* | PMI_* | OMPI_* | SLURM_* | HOCCL_* | CUDA_* | RANK | WORLD_SIZE | MASTER_ADDR) unset "$name" ;; esac
done

complain() {
    echo "FAIL: $*"
    bad=1
}

# gives STATUS PATH=VALUE… -- [NAME=VALUE…] [OPTION…]: hoccl-info --json with these options in this environment.
gives() {
    local status=$1 expected=() settings=()
    shift
    while [ "$1" != -- ]; do
        expected+=("$1")
        shift
    done
    shift
    while [ $# != 0 ] && [ "${1#-}" = "$1" ]; do
        settings+=("$1")
        shift
    done
    echo "== ${settings[*]} hoccl-info --json $*"
    env "${settings[@]}" "$info" --json "$@" >"$work/out" 2>"$work/err"
    [ $? = "$status" ] || complain "it did not exit with $status"
    "$has" "${expected[@]}" <"$work/out" || complain "the document"
}

# says TEXT [NAME=VALUE…] [OPTION…]: the same for the text.
says() {
    local text=$1 settings=()
    shift
    while [ $# != 0 ] && [ "${1#-}" = "$1" ]; do
        settings+=("$1")
        shift
    done
    echo "== ${settings[*]} hoccl-info $*"
    env "${settings[@]}" "$info" "$@" >"$work/out" 2>"$work/err" || complain "it failed"
    grep -q -- "$text" "$work/out" || {
        complain "it does not say: $text"
        cat "$work/out"
    }
}

# Emulated GPUs that stand in a recorded machine.
emulated="HOCCL_DEVICE=emu HOCCL_EMU_DEVICES=4 HOCCL_EMU_PCI=0:19:0,0:1a:0,0:9a:0,0:9b:0"
recorded="$emulated HOCCL_TOPO_FILE=$data/two-gpus-a-nic.xml"
# shellcheck disable=SC2086 # lists of words
{
    gives 0 version='*' driver.kind=emulated driver.usable=true driver.cuda='*' driver.error=null topology.locality=known \
        topology.other_gpus=0 gpus=#4 gpus.0.pci=0000:19:00.0 gpus.0.index=0 gpus.0.name='*' gpus.0.uuid='*' \
        gpus.0.memory='*' gpus.0.in_topology=true gpus.0.numa=0 gpus.0.cpus=0-1 gpus.0.symmetric=1 gpus.3.symmetric=2 \
        gpus.0.nic=mlx5_0 'gpus.0.nic_distance=same switch' gpus.2.nic=mlx5_1 peer_access=#4 peer_access.0.1=true \
        'distances.gpu_gpu.0.1=same switch' 'distances.gpu_gpu.0.2=across the system' distances.gpu_gpu.0.0=null \
        'distances.gpu_nic.3.1=same switch' nics=#2 nics.0.name=mlx5_0 nics.0.pci=0000:1b:00.0 nics.0.numa=0 \
        nics.0.ports=2 nics.0.active_ports=1 nics.0.gpus=2 'transports.0.name=copy engines' transports.0.available=true \
        transports.1.name=verbs transports.1.reach='across nodes' transports.2.name=tcp transports.2.available=true settings_error=null settings.0.name=HOCCL_DEBUG \
        settings.0.value=null settings.0.default=warn settings.0.about='*' limits.memlock='*' limits.open_files.now='*' \
        limits.dev_shm.needed=false launcher.name=none launcher.hint='*' channels.variable=CUDA_DEVICE_MAX_CONNECTIONS \
        channels.value=32 channels.gate_from=null -- $recorded
    says 'symmetric GPU 1, nearest NIC mlx5_0 (same switch)' $recorded
    gives 0 gpus.0.slots.transport=tcp gpus.0.slots.place=host gpus.0.slots.gpu=null gpus.0.slots.nic=null gpus.0.slots.flush=false \
        'gpus.0.slots.why=tcp takes no memory of GPUs' -- $recorded HOCCL_NET=tcp
    says 'slots for other nodes (tcp): in host memory, tcp takes no memory of GPUs' $recorded HOCCL_NET=tcp
    gives 0 peer_access.0.1=false peer_access.0.0=true -- $emulated HOCCL_EMU_P2P=0
    gives 0 gpus=#2 topology.other_gpus=2 gpus.0.symmetric=null -- $recorded CUDA_VISIBLE_DEVICES=1,2
    says 'locality unknown' $emulated HOCCL_TOPO_FILE=$data/no-gpu.xml
    gives 0 topology.locality=unknown gpus.0.in_topology=false gpus.0.numa=null gpus.0.symmetric=null gpus.0.nic=null \
        distances.gpu_gpu.0.1=null -- $emulated HOCCL_TOPO_FILE=$data/no-gpu.xml
    gives 1 gpus=#4 nics=#0 topology.error='*' gpus.0.numa=null gpus.0.name='*' -- $emulated HOCCL_TOPO_FILE=$data/broken.xml

    # Channels and gates.
    gives 0 channels.channels=16 channels.gate_from=9 channels.value=16 -- $emulated CUDA_DEVICE_MAX_CONNECTIONS=16
    gives 0 channels.channels=1 channels.gate_from=1 -- $emulated CUDA_DEVICE_MAX_CONNECTIONS=1
    gives 0 channels.gate_from=null -- $emulated HOCCL_GATE=none
    gives 0 channels.channels=32 channels.gate_from=null -- $emulated CUDA_DEVICE_MAX_CONNECTIONS=32
    says 'with 9 or more parked streams' $emulated CUDA_DEVICE_MAX_CONNECTIONS=16

    # Settings.
    gives 0 settings.0.value=info settings_error=null -- $emulated HOCCL_DEBUG=info
    gives 1 settings.0.value=loud settings_error='*' gpus=#4 -- $emulated HOCCL_DEBUG=loud

    # Launchers.
    gives 0 launcher.name=PMIx launcher.rank=1 launcher.ranks=2 launcher.hint=null -- $emulated PMIX_NAMESPACE=job PMIX_RANK=1 \
        OMPI_COMM_WORLD_SIZE=2
    gives 0 'launcher.name=Slurm without PMIx' launcher.rank=0 launcher.ranks=2 -- $emulated SLURM_NTASKS=2 SLURM_PROCID=0
    gives 0 'launcher.name=PMI without PMIx' launcher.rank=1 launcher.ranks=3 -- $emulated PMI_SIZE=3 PMI_RANK=1
    says 'srun --mpi=pmix' $emulated SLURM_NTASKS=2 SLURM_PROCID=0
    gives 0 launcher.name=torchrun launcher.rank=3 launcher.ranks=8 -- $emulated RANK=3 WORLD_SIZE=8 MASTER_ADDR=here
}

# No GPU is no failure.
gives 0 driver.kind=none driver.usable=false driver.error='*' gpus=#0 transports.0.available=false nics='*' rdma.ports='*' -- HOCCL_DEVICE=emu \
    HOCCL_EMU_DEVICES=0 HOCCL_TOPO_FILE="$data/no-gpu.xml"
says 'not usable: .*no emulated GPU.*HOCCL_EMU_DEVICES' HOCCL_DEVICE=emu HOCCL_EMU_DEVICES=0
says 'not usable: .*no emulated GPU.*CUDA_VISIBLE_DEVICES' HOCCL_DEVICE=emu CUDA_VISIBLE_DEVICES=
says 'not usable: .*HOCCL_DEVICE is "gpu"' HOCCL_DEVICE=gpu
gives 0 driver.kind=none gpus=#4 gpus.0.name=null gpus.0.symmetric=1 -- HOCCL_DEVICE=emu HOCCL_EMU_DEVICES=0 \
    HOCCL_TOPO_FILE="$data/two-gpus-a-nic.xml"

# Recorded machines.
gives 0 driver=null peer_access=null gpus=#5 nics=#3 gpus.0.name=null gpus.2.symmetric=null gpus.3.nic=mlx5_2 \
    -- --xml "$data/odd.xml"
gives 0 gpus=#8 gpus.0.symmetric=1 gpus.0.nic=null -- --xml "$data/no-nic.xml"
says 'GPU  4  0000:c1:00.0' --xml "$data/odd.xml"
gives 0 gpus=#4 topology.locality=unknown -- --xml "$data/flat.xml"
for file in broken version3 nowhere; do
    gives 1 gpus=#0 topology.error='*' -- --xml "$data/$file.xml"
    grep -q "hoccl-info: .*$file.xml" "$work/err" || complain "nothing on standard error"
done

# The command line.
"$info" --help | grep -q 'Usage: hoccl-info' || complain "--help"
"$info" --version | grep -q '^hoccl-info [0-9]*\.[0-9]*\.[0-9]*$' || complain "--version"
for wrong in --nonsense -x stray; do
    "$info" $wrong >"$work/out" 2>"$work/err"
    [ $? = 2 ] || complain "$wrong is not refused"
    [ -s "$work/out" ] && complain "$wrong: something on standard output"
done
"$info" --xml "$data/flat.xml" >/dev/full 2>"$work/err" && complain "a full disk is not noticed"

[ $bad = 0 ] && echo "all right"
exit $bad
