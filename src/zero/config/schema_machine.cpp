#include "zero/config/schema_parts.hpp"

namespace penstock::zero::config {

namespace {

using enum Kind;
using enum Status;

constexpr double uint32_max = 4294967295.0;
constexpr std::string_view one_driver = "each path has one driver thread, and penstock.io_engine its engine";

std::vector<std::uint32_t> to_nodes(const std::vector<double>& numbers) {
  return {numbers.begin(), numbers.end()};
}

constexpr Key keys[] = {
    {.path = "aio", .kind = block, .nullable = true},
    {.path = "aio.block_size",
     .kind = count,
     .least = 4096,
     .set = [](Draft& d, const Value& v) { d.config.aio_block_size = ByteCount(v.count); }},
    {.path = "aio.queue_depth",
     .kind = count,
     .least = 1,
     .most = 4096,
     .set = [](Draft& d, const Value& v) { d.aio_queue_depth = static_cast<std::uint32_t>(v.count); }},
    {.path = "aio.intra_op_parallelism", .kind = count, .status = no_effect, .why = one_driver, .least = 1},
    {.path = "aio.single_submit", .kind = flag, .status = no_effect, .why = one_driver},
    {.path = "aio.overlap_events", .kind = flag, .status = no_effect, .why = one_driver},
    {.path = "aio.thread_count",
     .kind = count,
     .status = no_effect,
     .why = "an old name that DeepSpeed drops; each path has one driver thread"},
    {.path = "aio.num_threads",
     .kind = count,
     .status = no_effect,
     .why = "an old name that DeepSpeed drops; each path has one driver thread"},
    {.path = "aio.use_gds", .kind = flag, .status = only_default, .fallback = "false"},

    {.path = "penstock", .kind = block},
    {.path = "penstock.host_budget",
     .kind = bytes,
     .set = [](Draft& d, const Value& v) { d.config.penstock.host_budget = ByteCount(v.count); }},
    {.path = "penstock.device_budget",
     .kind = bytes,
     .set = [](Draft& d, const Value& v) { d.config.penstock.device_budget = ByteCount(v.count); }},
    {.path = "penstock.tile_elements",
     .kind = count,
     .least = cpu_adam::block_elements.value(),
     .most = uint32_max,
     .set = [](Draft& d, const Value& v) { d.config.penstock.tile_elements = ElementCount(v.count); }},
    {.path = "penstock.tiles_in_flight",
     .kind = count,
     .least = 1,
     .most = 4096,
     .set = [](Draft& d,
               const Value& v) { d.config.penstock.tiles_in_flight = static_cast<std::uint32_t>(v.count); }},
    {.path = "penstock.path_weights",
     .kind = numbers,
     .least = 1e-6,
     .most = 1e6,
     .set = [](Draft& d, const Value& v) { d.config.penstock.path_weights = v.numbers; }},
    {.path = "penstock.path_nodes",
     .kind = numbers,
     .most = 1023,
     .whole = true,
     .set = [](Draft& d, const Value& v) { d.config.penstock.path_nodes = to_nodes(v.numbers); }},
    {.path = "penstock.rank_nodes",
     .kind = numbers,
     .most = 1023,
     .whole = true,
     .set = [](Draft& d, const Value& v) { d.config.penstock.rank_nodes = to_nodes(v.numbers); }},
    {.path = "penstock.io_deadline_seconds",
     .kind = count,
     .least = 1,
     .most = 86'400,
     .set =
         [](Draft& d, const Value& v) {
           d.config.penstock.io_deadline_seconds = static_cast<std::uint32_t>(v.count);
         }},
    {.path = "penstock.unit_elements_max",
     .kind = count,
     .set = [](Draft& d, const Value& v) { d.config.penstock.unit_elements_max = ElementCount(v.count); }},
    {.path = "penstock.eviction",
     .kind = text,
     .choices = "lru|planned",
     .set =
         [](Draft& d, const Value& v) {
           d.config.penstock.eviction = v.text == "lru" ? swap::Eviction::lru : swap::Eviction::planned;
         }},
    {.path = "penstock.io_engine",
     .kind = text,
     .choices = "automatic|io_uring|libaio|threads",
     .set =
         [](Draft& d, const Value& v) {
           using tiers::EngineChoice;
           for (const auto choice : {EngineChoice::automatic, EngineChoice::io_uring, EngineChoice::libaio,
                                     EngineChoice::threads}) {
             if (v.text == to_string(choice)) d.config.penstock.io_engine = choice;
           }
         }},
    {.path = "penstock.integrity",
     .kind = text,
     .choices = "off|checksum",
     .set =
         [](Draft& d, const Value& v) {
           d.config.penstock.integrity = v.text == "off" ? Integrity::off : Integrity::checksum;
         }},
    {.path = "penstock.state_format",
     .kind = text,
     .choices = "fp32|split|split_bf16|split_q8",
     .set =
         [](Draft& d, const Value& v) {
           for (const auto format : {cpu_adam::StateFormat::fp32, cpu_adam::StateFormat::split,
                                     cpu_adam::StateFormat::split_bf16, cpu_adam::StateFormat::split_q8}) {
             if (v.text == to_string(format)) d.config.penstock.state_format = format;
           }
         }},
    {.path = "penstock.threads",
     .kind = count,
     .most = 65536,
     .set = [](Draft& d,
               const Value& v) { d.config.penstock.threads = static_cast<std::uint32_t>(v.count); }},
};

}  // namespace

std::span<const Key> machine_keys() {
  return keys;
}

}  // namespace penstock::zero::config
