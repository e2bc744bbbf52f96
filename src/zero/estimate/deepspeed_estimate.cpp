#include "zero/estimate/estimate.hpp"

#include "zero/estimate/python_number.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace penstock::zero {

namespace {

using estimate::PythonNumber;

PythonNumber whole(std::uint64_t n) {
  return PythonNumber::integer(n);
}

PythonNumber count(ElementCount n, bool as_float) {
  return as_float ? PythonNumber::real(static_cast<double>(n.value())) : whole(n.value());
}

PythonNumber truncate(PythonNumber n) {
  return PythonNumber::integer(n.truncated());
}

/// Terms that the formulas of both stages use.
struct Terms {
  PythonNumber params, largest_layer, gpus_per_node, total_gpus, factor;

  explicit Terms(const DeepSpeedEstimateOptions& o)
      : params(count(o.total_params, o.params_are_floats)),
        largest_layer(count(o.largest_layer_params, o.params_are_floats)),
        gpus_per_node(whole(o.gpus_per_node)),
        total_gpus(whole(std::uint64_t{o.nodes} * o.gpus_per_node)),
        factor(o.factor_is_integer ? whole(static_cast<std::uint64_t>(o.additional_buffer_factor))
                                   : PythonNumber::real(o.additional_buffer_factor)) {}
};

DeepSpeedEstimateRow stage3_row(const DeepSpeedEstimateOptions& options, bool param, bool optimizer,
                                bool zero_init) {
  const Terms t(options);
  const PythonNumber share = whole(1) / whole(options.nodes);
  const PythonNumber gathered = whole(4) * t.largest_layer;
  PythonNumber cpu = whole(0), gpu = gathered;
  if (optimizer) {
    const PythonNumber states = whole(param ? 18 : 16);
    if (!param) gpu = gathered + truncate(whole(2) * t.params / t.total_gpus);
    cpu = zero_init ? t.params * states * share * t.factor
                    : t.params * PythonNumber::max(whole(4) * t.gpus_per_node, states * share) * t.factor;
  } else {
    gpu = gathered + truncate(whole(18) * t.params / t.total_gpus);
    cpu = (zero_init ? t.largest_layer : t.params) * whole(4) * t.gpus_per_node * t.factor;
  }
  return {.offload_param = param ? OffloadDevice::cpu : OffloadDevice::none,
          .offload_optimizer = optimizer ? OffloadDevice::cpu : OffloadDevice::none,
          .zero_init = zero_init,
          .cpu_bytes = cpu.truncated(),
          .gpu_bytes = gpu.truncated()};
}

DeepSpeedEstimateRow stage2_row(const DeepSpeedEstimateOptions& options, bool optimizer) {
  const Terms t(options);
  PythonNumber cpu = whole(0), gpu = whole(2) * t.params;
  if (optimizer) {
    cpu = t.params * PythonNumber::max(whole(4) * t.total_gpus, whole(16)) * t.factor;
  } else {
    gpu = gpu + truncate(whole(18) * t.params / t.total_gpus);
    cpu = t.params * whole(4) * t.gpus_per_node * t.factor;
  }
  return {.offload_optimizer = optimizer ? OffloadDevice::cpu : OffloadDevice::none,
          .cpu_bytes = cpu.truncated(),
          .gpu_bytes = gpu.truncated()};
}

template <class... Arguments>
std::string format(const char* pattern, Arguments... arguments) {
  std::string text(256, '\0');
  text.resize(static_cast<std::size_t>(std::snprintf(text.data(), text.size(), pattern, arguments...)));
  return text;
}

/// Millions, truncated: int(n / 1e6).
unsigned long long millions(ElementCount n) {
  return static_cast<unsigned long long>(static_cast<double>(n.value()) / 1e6);
}

double gigabytes(WideByteCount bytes) {
  return static_cast<double>(bytes) / 0x1p30;
}

/// Padded to four, as DeepSpeed prints it.
const char* padded(OffloadDevice device) {
  return device == OffloadDevice::cpu ? "cpu " : "none";
}

}  // namespace

std::string to_decimal(WideByteCount bytes) {
  std::string digits;
  do {
    digits.push_back(static_cast<char>('0' + static_cast<int>(bytes % 10)));
    bytes /= 10;
  } while (bytes != 0);
  std::reverse(digits.begin(), digits.end());
  return digits;
}

Result<std::vector<DeepSpeedEstimateRow>> deepspeed_estimate(std::uint32_t stage,
                                                             const DeepSpeedEstimateOptions& options) {
  const auto refuse = [](const char* object) {
    return Error::invalid_argument("deepspeed_estimate").object(object);
  };
  if (stage != 2 && stage != 3) return refuse("stage").wanted("2 or 3").got(stage);
  if (options.gpus_per_node == 0 || options.nodes == 0) return refuse("GPUs").wanted("at least one");
  const double factor = options.additional_buffer_factor;
  if (!(factor >= 0 && factor <= 1e6)) return refuse("additional_buffer_factor").wanted("from 0 to 1000000");

  std::vector<DeepSpeedEstimateRow> rows;
  if (stage == 2) {
    for (bool optimizer : {true, false}) rows.push_back(stage2_row(options, optimizer));
    return rows;
  }
  struct Offload {
    bool param, optimizer;
  };
  for (Offload offload : {Offload{true, true}, Offload{false, true}, Offload{false, false}}) {
    for (bool zero_init : {true, false}) {
      rows.push_back(stage3_row(options, offload.param, offload.optimizer, zero_init));
    }
  }
  return rows;
}

Result<std::string> deepspeed_estimate_table(std::uint32_t stage, const DeepSpeedEstimateOptions& options) {
  PENSTOCK_TRY_ASSIGN(const auto rows, deepspeed_estimate(stage, options));

  std::string table = "Estimated memory needed for params, optim states and gradients for a:\n";
  table += format("HW: Setup with %u node%s, %u GPU%s per node.\n", options.nodes,
                  options.nodes > 1 ? "s" : "", options.gpus_per_node, options.gpus_per_node > 1 ? "s" : "");
  table += format("SW: Model with %lluM total params", millions(options.total_params));
  if (stage == 3) table += format(", %lluM largest layer params", millions(options.largest_layer_params));
  table += ".\n  per CPU  |  per GPU |   Options\n";
  for (const DeepSpeedEstimateRow& row : rows) {
    table += format(" %7.2fGB | %6.2fGB | ", gigabytes(row.cpu_bytes), gigabytes(row.gpu_bytes));
    if (stage == 3) table += format("offload_param=%s, ", padded(row.offload_param));
    table += format("offload_optimizer=%s", padded(row.offload_optimizer));
    if (stage == 3) table += format(", zero_init=%d", row.zero_init ? 1 : 0);
    table += "\n";
  }
  return table;
}

}  // namespace penstock::zero
