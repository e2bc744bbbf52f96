#include <penstock/zero/config/config.hpp>

#include <json/json.h>
#include <array>
#include <charconv>

namespace penstock::zero {

std::string_view to_string(OffloadDevice device) {
  switch (device) {
    case OffloadDevice::cpu: return "cpu";
    case OffloadDevice::nvme: return "nvme";
    case OffloadDevice::none: break;
  }
  return "none";
}

std::string_view to_string(Integrity name) {
  return name == Integrity::off ? "off" : "checksum";
}

namespace {

Json::Value text(std::string_view value) {
  return Json::Value(value.data(), value.data() + value.size());
}

/// A float as the shortest decimal that is read back as it was: 0.9, not 0.899999976.
Json::Value number(float value) {
  std::array<char, 32> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value);
  double shortest = 0;
  std::from_chars(digits.data(), end.ptr, shortest);
  return shortest;
}

Json::Value to_json(const OffloadConfig& offload) {
  Json::Value json;
  json["device"] = text(to_string(offload.device));
  json["pin_memory"] = offload.pin_memory;
  json["nvme_path"] = Json::nullValue;
  if (offload.nvme_paths.size() == 1) json["nvme_path"] = offload.nvme_paths.front().string();
  for (std::size_t i = 0; offload.nvme_paths.size() > 1 && i < offload.nvme_paths.size(); ++i) {
    json["nvme_path"][static_cast<Json::ArrayIndex>(i)] = offload.nvme_paths[i].string();
  }
  return json;
}

Json::Value to_json(const OptimizerConfig& optimizer) {
  Json::Value json;
  json["type"] = "Adam";
  Json::Value& params = json["params"];
  params["lr"] = number(optimizer.learning_rate);
  params["betas"][0] = number(optimizer.beta1);
  params["betas"][1] = number(optimizer.beta2);
  params["eps"] = number(optimizer.epsilon);
  params["weight_decay"] = number(optimizer.weight_decay);
  params["bias_correction"] = optimizer.bias_correction;
  params["adam_w_mode"] = optimizer.decay_mode == cpu_adam::AdamDecay::decoupled;
  return json;
}

Json::Value to_json(const PenstockConfig& penstock) {
  Json::Value json;
  json["host_budget"] = Json::UInt64(penstock.host_budget.value());
  json["device_budget"] = Json::UInt64(penstock.device_budget.value());
  json["tile_elements"] = Json::UInt64(penstock.tile().value());
  json["tiles_in_flight"] = penstock.tiles_in_flight;
  for (const double weight : penstock.path_weights) json["path_weights"].append(weight);
  for (const std::uint32_t node : penstock.path_nodes) json["path_nodes"].append(node);
  for (const std::uint32_t node : penstock.rank_nodes) json["rank_nodes"].append(node);
  json["io_deadline_seconds"] = penstock.io_deadline_seconds;
  json["unit_elements_max"] = Json::UInt64(penstock.unit_elements_max.value());
  json["eviction"] = text(to_string(penstock.eviction));
  json["io_engine"] = text(to_string(penstock.io_engine));
  json["integrity"] = text(to_string(penstock.integrity));
  json["state_format"] = text(to_string(penstock.state_format));
  json["threads"] = penstock.threads;
  return json;
}

}  // namespace

std::string Config::to_json() const {
  Json::Value json;
  json["train_batch_size"] = train_batch_size;
  json["train_micro_batch_size_per_gpu"] = micro_batch_size;
  json["gradient_accumulation_steps"] = gradient_accumulation_steps;
  json["gradient_clipping"] = number(gradient_clipping);
  json["bf16"]["enabled"] = dtype == DType::bf16;
  json["fp16"]["enabled"] = dtype == DType::fp16;
  if (dtype == DType::fp16) json["fp16"]["loss_scale"] = number(loss_scale);
  json["data_types"]["grad_accum_dtype"] = text(to_string(grad_accum_dtype));
  json["zero_optimization"]["stage"] = stage;
  json["zero_optimization"]["offload_param"] = zero::to_json(offload_param);
  json["zero_optimization"]["offload_optimizer"] = zero::to_json(offload_optimizer);
  json["optimizer"] = zero::to_json(optimizer);
  json["aio"]["block_size"] = Json::UInt64(aio_block_size.value());
  json["aio"]["queue_depth"] = aio_queue_depth;
  json["penstock"] = zero::to_json(penstock);

  Json::StreamWriterBuilder writer;
  writer["indentation"] = "  ";
  writer["precision"] = 9;  // what a float needs to be read back as it was
  return Json::writeString(writer, json);
}

}  // namespace penstock::zero
