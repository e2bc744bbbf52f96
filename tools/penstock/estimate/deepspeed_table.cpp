#include "estimate/arguments.hpp"
#include "zero/estimate/estimate.hpp"

#include <charconv>

namespace penstock::tool {

namespace {

Json::Value to_json(const std::vector<zero::DeepSpeedEstimateRow>& rows, std::uint32_t stage) {
  Json::Value json(Json::arrayValue);
  for (const auto& row : rows) {
    Json::Value entry;
    if (stage == 3) entry["offload_param"] = json_string(to_string(row.offload_param));
    entry["offload_optimizer"] = json_string(to_string(row.offload_optimizer));
    if (stage == 3) entry["zero_init"] = row.zero_init ? 1 : 0;
    entry["cpu_bytes"] = json_number(row.cpu_bytes);
    entry["gpu_bytes"] = json_number(row.gpu_bytes);
    json.append(entry);
  }
  return json;
}

}  // namespace

Json::Value json_number(zero::WideByteCount bytes) {
  if (bytes <= ~std::uint64_t{0}) return Json::UInt64(static_cast<std::uint64_t>(bytes));
  return zero::to_decimal(bytes);
}

Error only_stage_3() {
  return Error::unsupported("penstock estimate")
      .object("--stage 2")
      .reason("without --format deepspeed only stage 3 is estimated; --config gives another stage to --model")
      .advice("--format deepspeed prints DeepSpeed's estimate for stage 2");
}

Result<void> take_factor(const std::string& text, zero::DeepSpeedEstimateOptions& options) {
  const char* const end = text.data() + text.size();
  std::uint64_t whole = 0;
  const auto integer = std::from_chars(text.data(), end, whole);
  options.factor_is_integer = integer.ptr == end && integer.ec == std::errc();
  const auto parsed = std::from_chars(text.data(), end, options.additional_buffer_factor);
  const bool in_range = options.additional_buffer_factor >= 0 && options.additional_buffer_factor <= 1e6;
  if (parsed.ptr == end && parsed.ec == std::errc() && in_range) return ok();
  return Error::invalid_argument("penstock estimate")
      .object("--factor")
      .wanted("a number from 0 to 1000000")
      .got(text);
}

ExitStatus print_deepspeed(const EstimateOptions& options, const zero::DeepSpeedEstimateOptions& sizes) {
  if (options.json) {
    const auto rows = zero::deepspeed_estimate(options.stage, sizes);
    if (!rows) return fail(rows.error());
    print_json(to_json(*rows, options.stage));
    return done;
  }
  const auto table = zero::deepspeed_estimate_table(options.stage, sizes);
  if (!table) return fail(table.error());
  fmt::print("{}", *table);
  return done;
}

}  // namespace penstock::tool
