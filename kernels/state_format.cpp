#include <penstock/kernels/state_format.hpp>

namespace penstock::kernels {

std::string_view to_string(StateFormat format) {
  switch (format) {
    case StateFormat::fp32: return "fp32";
    case StateFormat::split: return "split";
    case StateFormat::split_bf16: return "split_bf16";
    case StateFormat::split_q8: return "split_q8";
  }
  return "unknown";
}

}  // namespace penstock::kernels
