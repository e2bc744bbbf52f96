#pragma once

#include <penstock/base/dtype.hpp>
#include <penstock/base/result.hpp>
#include <penstock/cpu_adam/state_format.hpp>
#include <penstock/tiers/tier.hpp>
#include <penstock/zero/config/config.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace penstock::zero {

/// The inputs of an estimate of a run's memory and disk traffic.
struct RunEstimateOptions {
  ElementCount parameters;    ///< of the whole model, shared ones counted once
  ElementCount largest_unit;  ///< maximum number of parameters that are gathered together
  std::uint32_t ranks_per_node = 1;
  std::uint32_t nodes = 1;
  std::uint32_t stage = 3;               ///< of ZeRO
  DType dtype = DType::bf16;             ///< of parameters and gradients
  DType grad_accum_dtype = DType::bf16;  ///< of accumulated gradients
  std::uint32_t micro_batches = 1;       ///< per step
  OffloadDevice offload_param = OffloadDevice::nvme;
  OffloadDevice offload_optimizer = OffloadDevice::nvme;
  cpu_adam::StateFormat state_format = cpu_adam::StateFormat::fp32;
  cpu_adam::Optimizer optimizer = cpu_adam::Optimizer::adam;
  std::optional<ElementCount> tile_elements;  ///< none: the state format's default
  std::uint32_t tiles_in_flight = 4;
  float cpu_update_ratio = 1;  ///< part of the offloaded states that the CPU updates
  UpdateSplit update_split = UpdateSplit::ratio;
  ByteCount device_states;  ///< of a rank's offloaded states, those that stay on the device
};

struct RunEstimate {
  /// Upper bound of the bytes in one tier for one purpose.
  struct Line {
    tiers::Tier tier;
    tiers::Purpose purpose;
    ByteCount per_rank, per_node;
  };
  /// Disk traffic of one rank in one step.
  struct Traffic {
    tiers::Purpose purpose;
    ByteCount read, written;
  };
  std::vector<Line> lines;       ///< in order device, host, nvme; without lines of zero bytes
  std::vector<Traffic> traffic;  ///< without purposes that have no traffic
  std::uint32_t ranks_per_node = 1;

  [[nodiscard]] ByteCount per_rank(tiers::Tier tier) const;
  [[nodiscard]] ByteCount per_node(tiers::Tier tier) const;
  [[nodiscard]] ByteCount read_per_step_per_node() const;
  /// The written bytes, which determine the drives' wear.
  [[nodiscard]] ByteCount written_per_step_per_node() const;
};

/// Estimates a run from sizes only, for a model divided into units of at most `largest_unit`:
/// - a shard is ceil(parameters / ranks), padded to 128 elements;
/// - the device holds two gathered units and their full gradients: one is used while the other is gathered or reduced.
///   Below stage 3 it holds all parameters;
/// - what is offloaded to cpu is in host memory, and so is the reduced gradient, in `grad_accum_dtype`. With
///   offload_optimizer none the states and that gradient are on the device; with offload_param none too, the parameters
///   are. The device has memory of its own;
/// - tiles that the device updates pass through up to four slots of its memory; of those that it keeps, gradients and
///   parameters do;
/// - kernels report the sums of squares of gradients, 8 bytes for 4096 elements, to host memory; pieces of what is kept
///   on the device are copied there too;
/// - tensors on nvme are staged in host memory: 2 × `tiles_in_flight` + 1 tiles and those that are updated at a time,
///   and the minimal staging that plan_memory() requires for progress;
/// - a step reads each parameter shard on nvme twice per micro-batch (forward, backward), once more if it is the upper
///   half of the master, and writes it once; it reads and writes each tile once. These are upper bounds: a larger host
///   budget keeps some of them in memory.
/// Activations and the trainer's own memory are not counted. Pure.
///
/// Errors: invalid_argument, for a count of zero, a unit larger than the model, or sizes past 2^42
/// parameters or 65536 nodes or ranks of one, or a state format that does not take the dtype.
[[nodiscard]] Result<RunEstimate> estimate_run(const RunEstimateOptions& options);

/// Byte counts of DeepSpeed's estimators can exceed 64 bits.
__extension__ typedef unsigned __int128 WideByteCount;

[[nodiscard]] std::string to_decimal(WideByteCount bytes);

/// Arguments of DeepSpeed's `estimate_zero{2,3}_model_states_mem_needs_all_cold`.
struct DeepSpeedEstimateOptions {
  ElementCount total_params;
  ElementCount largest_layer_params;  ///< stage 3 only
  std::uint32_t gpus_per_node = 1;
  std::uint32_t nodes = 1;
  double additional_buffer_factor = 1.5;
  /// Python computes exactly with integers and in doubles with floats; above 2^53 the results differ.
  /// params_are_floats: the counts were written as floats (2851e6). factor_is_integer: the factor was written as an
  /// integer (2).
  bool params_are_floats = false;
  bool factor_is_integer = false;
};

struct DeepSpeedEstimateRow {
  OffloadDevice offload_param = OffloadDevice::none;  ///< stage 3 only
  OffloadDevice offload_optimizer = OffloadDevice::none;
  bool zero_init = false;  ///< stage 3 only
  WideByteCount cpu_bytes = 0, gpu_bytes = 0;
};

/// The rows of DeepSpeed's table for `stage` 2 or 3, in its order of operations and of rows.
/// Source of the formulas: estimate_zero3_model_states_mem_needs in deepspeed/runtime/zero/stage3.py and
/// estimate_zero2_model_states_mem_needs in stage_1_and_2.py, version 0.19.
///
/// Errors: invalid_argument, for another stage, no GPUs, or a factor that is negative or not finite.
[[nodiscard]] Result<std::vector<DeepSpeedEstimateRow>> deepspeed_estimate(
    std::uint32_t stage, const DeepSpeedEstimateOptions& options);

/// DeepSpeed's table, byte for byte as Python up to 3.10 prints it, newlines included.
[[nodiscard]] Result<std::string> deepspeed_estimate_table(std::uint32_t stage,
                                                           const DeepSpeedEstimateOptions& options);

}  // namespace penstock::zero
