#include "zero/config/schema.hpp"

#include "zero/config/schema_parts.hpp"

#include <map>

namespace penstock::zero::config {

namespace {

constexpr Alias alias_table[] = {
    {.path = "bfloat16", .stands_for = "bf16"},
    {"zero_optimization.stage3_prefetch_bucket_size", "zero_optimization.prefetch_bucket_size"},
    {"zero_optimization.stage3_param_persistence_threshold", "zero_optimization.param_persistence_threshold"},
    {"zero_optimization.stage3_model_persistence_threshold", "zero_optimization.model_persistence_threshold"},
    {"zero_optimization.stage3_max_live_parameters", "zero_optimization.max_live_parameters"},
    {"zero_optimization.stage3_max_reuse_distance", "zero_optimization.max_reuse_distance"},
    {"zero_optimization.stage3_gather_16bit_weights_on_model_save",
     "zero_optimization.gather_16bit_weights_on_model_save"},
    {"zero_optimization.stage3_module_granularity_threshold",
     "zero_optimization.module_granularity_threshold"},
    {"zero_optimization.stage3_use_all_reduce_for_fetch_params",
     "zero_optimization.use_all_reduce_for_fetch_params"},
    {"zero_optimization.stage3_allgather_sequential", "zero_optimization.allgather_sequential"},
    {"zero_optimization.stage3_gather_fp16_weights_on_model_save",
     "zero_optimization.gather_16bit_weights_on_model_save", /*deprecated=*/true},
};

constexpr ForeignName foreign_name_table[] = {
    {.path = "optimizer.params.learning_rate", .key = "optimizer.params.lr"},
    {"optimizer.params.epsilon", "optimizer.params.eps"},
    {"optimizer.params.adam_epsilon", "optimizer.params.eps"},
    {"optimizer.params.beta1", "optimizer.params.betas"},
    {"optimizer.params.beta2", "optimizer.params.betas"},
    {"optimizer.params.beta_1", "optimizer.params.betas"},
    {"optimizer.params.beta_2", "optimizer.params.betas"},
    {"optimizer.params.adam_beta1", "optimizer.params.betas"},
    {"optimizer.params.adam_beta2", "optimizer.params.betas"},
    {"optimizer.params.weight_decay_rate", "optimizer.params.weight_decay"},
    {"optimizer.params.decoupled_weight_decay", "optimizer.params.adam_w_mode"},
    {"optimizer.name", "optimizer.type"},
    {"optimizer.lr", "optimizer.params.lr"},
    {"optimizer.learning_rate", "optimizer.params.lr"},
    {"scheduler.name", "scheduler.type"},
    {"scheduler.params.warmup_steps", "scheduler.params.warmup_num_steps"},
    {"scheduler.params.total_steps", "scheduler.params.total_num_steps"},
    {"lr", "optimizer.params.lr"},
    {"learning_rate", "optimizer.params.lr"},
    {"weight_decay", "optimizer.params.weight_decay"},
    {"max_grad_norm", "gradient_clipping"},
    {"clip_grad", "gradient_clipping"},
    {"grad_clip", "gradient_clipping"},
    {"batch_size", "train_batch_size"},
    {"global_batch_size", "train_batch_size"},
    {"micro_batch_size", "train_micro_batch_size_per_gpu"},
    {"train_micro_batch_size", "train_micro_batch_size_per_gpu"},
    {"per_device_train_batch_size", "train_micro_batch_size_per_gpu"},
    {"accumulate_grad_batches", "gradient_accumulation_steps"},
    {"zero", "zero_optimization"},
};

std::vector<Key> join(std::initializer_list<std::span<const Key>> parts) {
  std::vector<Key> all;
  for (std::span<const Key> part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

template <class Row>
std::map<std::string_view, const Row*> by_path(std::span<const Row> rows) {
  std::map<std::string_view, const Row*> map;
  for (const Row& row : rows) map.emplace(row.path, &row);
  return map;
}

template <class Row>
const Row* find(const std::map<std::string_view, const Row*>& map, std::string_view path) {
  const auto found = map.find(path);
  return found == map.end() ? nullptr : found->second;
}

}  // namespace

std::span<const Key> schema() {
  static const std::vector<Key> all =
      join({training_keys(), scheduler_keys(), zero_keys(), machine_keys(), feature_keys()});
  return all;
}

std::span<const Alias> aliases() {
  return alias_table;
}

std::span<const ForeignName> foreign_names() {
  return foreign_name_table;
}

const Key* find_key(std::string_view path) {
  static const auto map = by_path(schema());
  return find(map, path);
}

const Alias* find_alias(std::string_view path) {
  static const auto map = by_path(aliases());
  return find(map, path);
}

const ForeignName* find_foreign_name(std::string_view path) {
  static const auto map = by_path(foreign_names());
  return find(map, path);
}

}  // namespace penstock::zero::config
