#include "zero/config/schema_parts.hpp"

namespace penstock::zero::config {

namespace {

using enum Kind;
using enum Status;
using enum Consumer;

constexpr double uint32_max = 4294967295.0;
constexpr std::uint64_t tile_multiple = cpu_adam::block_elements.value();
constexpr std::string_view one_driver =
    "each path has one driver thread; penstock.io_engine selects its engine";

template <auto member>
constexpr Field own = field<&Draft::config, &Config::penstock, member>;

constexpr Key keys[] = {
    {.path = "aio", .kind = block, .nullable = true},
    {.path = "aio.block_size",
     .kind = count,
     .help = "bytes of the longest request",
     .bytes = "in flight on a path: this times queue_depth",
     .least = 4096,
     .multiple_of = 4096,
     .field = field<&Draft::config, &Config::aio_block_size>,
     .read_by = runtime},
    {.path = "aio.queue_depth",
     .kind = count,
     .help = "requests of that length in flight on a path",
     .bytes = "in flight on a path: this times block_size",
     .least = 1,
     .most = 4096,
     .unset = "16 MiB of requests",
     .field = field<&Draft::aio_queue_depth>,
     .read_by = runtime},
    {.path = "aio.intra_op_parallelism", .kind = count, .status = no_effect, .help = one_driver, .least = 1},
    {.path = "aio.single_submit", .kind = flag, .status = no_effect, .help = one_driver},
    {.path = "aio.overlap_events", .kind = flag, .status = no_effect, .help = one_driver},
    {.path = "aio.thread_count",
     .kind = count,
     .status = no_effect,
     .help = "an old name that DeepSpeed drops; each path has one driver thread"},
    {.path = "aio.num_threads",
     .kind = count,
     .status = no_effect,
     .help = "an old name that DeepSpeed drops; each path has one driver thread"},
    {.path = "aio.use_gds", .kind = flag, .status = only_default, .fallback = "false"},

    {.path = "penstock", .kind = block},
    {.path = "penstock.host_budget",
     .kind = bytes,
     .help = "host memory of all ranks of the machine; 0: chosen by the plan",
     .bytes = "host: so much for all ranks of the machine",
     .field = own<&PenstockConfig::host_budget>,
     .read_by = plan},
    {.path = "penstock.node_budgets",
     .kind = numbers,
     .help =
         "instead of host_budget, with rank_nodes: bytes of host memory of the ranks of each NUMA node, by "
         "its number; each of them has its part of that",
     .bytes = "host: so much for the ranks of each node",
     .least = 1,
     .most = 9e18,
     .whole = true,
     .unset = "host_budget",
     .field = own<&PenstockConfig::node_budgets>,
     .read_by = plan},
    {.path = "penstock.device_budget",
     .kind = bytes,
     .help =
         "device memory of each rank; on the CPU, leased shards of a single rank count too; 0: the smallest "
         "that the plan allows",
     .bytes = "device: so much",
     .field = own<&PenstockConfig::device_budget>,
     .read_by = plan},
    {.path = "penstock.device_states",
     .kind = bytes,
     .help = "offloaded masters and moments that stay in the memory of a GPU, of each rank: whole tiles, "
             "spread evenly, which the GPU updates and which count as its part of offload_optimizer.ratio; "
             "none on the CPU",
     .bytes = "device: so much, a part of device_budget, and up to 4 tiles' gradients and parameters; so "
              "much less in host memory or on nvme",
     .field = own<&PenstockConfig::device_states>,
     .read_by = plan},
    {.path = "penstock.tile_elements",
     .kind = count,
     .help = "elements of an optimizer tile",
     .bytes = "host, with states on nvme: 2 (tiles_in_flight + those updated at a time) tiles",
     .least = tile_multiple,
     .most = uint32_max,
     .multiple_of = tile_multiple,
     .unset = "3 MiB of the state format; of states that a GPU keeps 192 MiB; of those offloaded to cpu of "
              "which a GPU updates or keeps a part 48 or 12 MiB, if it has room and there are 64 tiles",
     .field = own<&PenstockConfig::tile_elements>,
     .read_by = plan},
    {.path = "penstock.tiles_in_flight",
     .kind = count,
     .help = "maximum number of tiles read ahead, and of tiles being written",
     .bytes = "host, with states on nvme: 2 (this + those updated at a time) tiles",
     .least = 1,
     .most = 4096,
     .unset = "4 for each directory of nvme_path",
     .field = field<&Draft::tiles_in_flight>,
     .read_by = plan},
    {.path = "penstock.path_weights",
     .kind = numbers,
     .help = "relative shares of the bytes, one for each directory of nvme_path",
     .least = 1e-6,
     .most = 1e6,
     .unset = "measured at start",
     .field = own<&PenstockConfig::path_weights>,
     .read_by = runtime},
    {.path = "penstock.path_nodes",
     .kind = numbers,
     .help = "NUMA nodes, one for each directory of nvme_path",
     .most = 1023,
     .whole = true,
     .unset = "as sysfs says",
     .field = own<&PenstockConfig::path_nodes>,
     .read_by = runtime},
    {.path = "penstock.rank_nodes",
     .kind = numbers,
     .help = "NUMA nodes, one for each rank of the machine",
     .most = 1023,
     .whole = true,
     .unset = "as sysfs says",
     .field = own<&PenstockConfig::rank_nodes>,
     .read_by = runtime},
    {.path = "penstock.path_limits",
     .kind = numbers,
     .help = "bytes a second of reads and writes, as `penstock tune` has measured, one for each directory of "
             "nvme_path: for reports, and for `planned`, which then evicts copies on faster drives first",
     .least = 1,
     .most = 1e15,
     .unset = "not known",
     .field = own<&PenstockConfig::path_limits>,
     .read_by = runtime},
    {.path = "penstock.path_endurance",
     .kind = numbers,
     .help = "bytes that may still be written to the drive of each directory of nvme_path: its maker's "
             "rating (TBW) less what was written before the run",
     .least = 1,
     .most = 9e18,
     .whole = true,
     .unset = "not known",
     .field = own<&PenstockConfig::path_endurance>,
     .read_by = runtime},
    {.path = "penstock.endurance_warning",
     .kind = real,
     .help = "part of path_endurance after which the runtime's messages warn",
     .most = 1,
     .field = own<&PenstockConfig::endurance_warning>,
     .read_by = engine},
    {.path = "penstock.endurance_cap",
     .kind = real,
     .help = "part of path_endurance that a run does not exceed: a step that would is refused",
     .most = 1,
     .nullable = true,
     .unset = "none",
     .field = own<&PenstockConfig::endurance_cap>,
     .read_by = engine},
    {.path = "penstock.memory_reserve",
     .kind = bytes,
     .help =
         "memory of the machine, or of the control group, that its ranks leave to others: where less is "
         "available at the end of a step, they give back what host memory has copies in, and take it "
         "again once there is more; not of memory that is registered with a GPU (pin_memory); 0: they do not "
         "look",
     .bytes = "host: less while others need it",
     .field = own<&PenstockConfig::memory_reserve>,
     .read_by = rank},
    {.path = "penstock.report_file",
     .kind = text,
     .help = "file for the rank's report, replaced every ten seconds and at the end: JSON for .json, metrics "
             "for Prometheus for .prom, else tables. What is no report is not replaced. Of several ranks, "
             "\".rank\" and the number are put before "
             "the extension",
     .nullable = true,
     .unset = "none",
     .field = own<&PenstockConfig::report_file>,
     .read_by = rank},
    {.path = "penstock.timeline_file",
     .kind = text,
     .help = "file for what is moved, updated and waited for, and when, in Chrome's trace format, which "
             "Perfetto opens; it ends after 256 MiB. What is no timeline is not replaced. Named as "
             "report_file is",
     .nullable = true,
     .unset = "none",
     .field = own<&PenstockConfig::timeline_file>,
     .read_by = rank},
    {.path = "penstock.durable_directory",
     .kind = paths,
     .help = "directories, one on each drive, in which Engine::commit() keeps the run so that a later "
             "process can "
             "continue it; they replace nvme_path as the place of swap files. Each run has its own",
     .bytes = "nvme: twice the masters and moments; the last commit stays while the next one is written",
     .nullable = true,
     .unset = "none",
     .field = own<&PenstockConfig::durable_directories>,
     .read_by = plan},
    {.path = "penstock.io_deadline_seconds",
     .kind = count,
     .help = "time limit of one request, after which the swap file is not used any more, and of each file "
             "operation at "
             "the start",
     .least = 1,
     .most = 86'400,
     .field = own<&PenstockConfig::io_deadline_seconds>,
     .read_by = runtime},
    {.path = "penstock.unit_elements_max",
     .kind = count,
     .help = "maximum number of elements of a unit, beyond which a trainer cuts matrices into row blocks; 0: "
             "no limit",
     .bytes = "device: bounds units, of which the budget has room for two and for their gradients",
     .field = own<&PenstockConfig::unit_elements_max>,
     .read_by = plan},
    {.path = "penstock.eviction",
     .kind = text,
     .help = "policy that chooses the host copy to evict when memory is needed. planned: the one whose next "
             "use is "
             "furthest away; lru: the least recently used; reuse_distance: as lru, and a copy is dropped "
             "after its "
             "use unless it is used again in the same step before parameters of "
             "zero_optimization.max_reuse_distance elements, as in DeepSpeed; other tensors count with their "
             "bytes",
     .bytes = "none; what is read from nvme, of which planned reads least",
     .choices = "lru|planned|reuse_distance",
     .field = own<&PenstockConfig::eviction>,
     .read_by = runtime},
    {.path = "penstock.release",
     .kind = text,
     .help =
         "when the device drops gathered parameters that are not in use, at stage 3. planned: when their "
         "memory is needed, first those whose next use is furthest away; reuse_distance: also once that is "
         "zero_optimization.max_reuse_distance away, as in DeepSpeed",
     .bytes = "device: less is held with reuse_distance; more is gathered and read",
     .choices = "planned|reuse_distance",
     .field = own<&PenstockConfig::release>,
     .read_by = engine},
    {.path = "penstock.io_engine",
     .kind = text,
     .help = "automatic: the first of the others that works, in this order",
     .choices = "automatic|io_uring|libaio|threads",
     .field = own<&PenstockConfig::io_engine>,
     .read_by = runtime},
    {.path = "penstock.integrity",
     .kind = text,
     .help = "whether each block read back from disk is verified",
     .choices = "off|checksum",
     .field = own<&PenstockConfig::integrity>,
     .read_by = engine},
    {.path = "penstock.state_format",
     .kind = text,
     .help = "format of masters and moments; split formats support bf16 only. Not together with "
             "bf16_master_weights_and_grads or fp16_master_weights_and_grads, which are formats of their own",
     .bytes = "for each parameter: fp32 12 B (8 with fp32 parameters), split 10, split_bf16 6, split_q8 4.51",
     .choices = "fp32|split|split_bf16|split_q8",
     .unset = "fp32",
     .field = field<&Draft::state_format>,
     .read_by = plan},
    {.path = "penstock.update_split",
     .kind = text,
     .help = "who updates a tile: the CPU or the device as offload_optimizer.ratio says, or the one that is "
             "free first",
     .bytes = "device, automatic: as for a ratio below 1",
     .choices = "ratio|automatic",
     .field = own<&PenstockConfig::update_split>,
     .read_by = plan},
    {.path = "penstock.update_in_backward",
     .kind = flag,
     .help =
         "update a shard as soon as its last gradient of a step is reduced, beside the backward of the units "
         "before it, instead of after step(); needs gradient_clipping 0, bf16 or fp32, and no endurance_cap. "
         "A gradient that is not finite then ends the run, instead of skipping the step, and a step whose "
         "update has begun cannot be abandoned",
     .bytes = "host, with anything on nvme: the most that accumulates gradients beside an update; nvme: "
              "tiles may be read twice, where gradients evict what was read ahead",
     .field = own<&PenstockConfig::update_in_backward>,
     .read_by = plan},
    {.path = "penstock.non_finite_gradients",
     .kind = text,
     .help = "what a step does with gradients that are not finite. skip: no update, for every dtype; "
             "as_deepspeed: no update with fp16, and with bf16 at stages 1 and 2 if "
             "bf16.check_grad_overflow; else the masters become what the gradients make of them",
     .choices = "skip|as_deepspeed",
     .field = own<&PenstockConfig::non_finite_gradients>,
     .read_by = step},
    {.path = "penstock.reduction",
     .kind = text,
     .help =
         "how gradients are averaged: exact gives the same bits on every transport, and takes more of the "
         "device's memory under NCCL; native is NCCL's ncclAvg",
     .bytes = "device, exact over NCCL: a slot of the largest flat from each peer",
     .choices = "exact|native",
     .unset = "native over NCCL, else exact",
     .field = own<&PenstockConfig::reduction>,
     .read_by = plan},
    {.path = "penstock.threads",
     .kind = count,
     .help = "workers of a rank; 0: cores / ranks of the machine",
     .most = 1024,
     .field = own<&PenstockConfig::threads>,
     .read_by = rank},
};

}  // namespace

std::span<const Key> machine_keys() {
  return keys;
}

}  // namespace penstock::zero::config
