// Keys that other keys leave without effect are noted.
#include "config_text.hpp"

#include <gtest/gtest.h>
#include <string>
#include <vector>

namespace penstock::zero {
namespace {

std::vector<std::string> notes_of(const std::string& keys) {
  const auto config = read(R"({"train_batch_size": 8, )" + keys + "}");
  EXPECT_TRUE(config) << keys << config.error().message();
  return config ? config->notes : std::vector<std::string>{};
}

bool has_note(const std::vector<std::string>& notes, const std::string& beginning) {
  for (const std::string& note : notes) {
    if (note.starts_with(beginning)) return true;
  }
  return false;
}

struct Case {
  std::string keys, key, reason;
};

TEST(UnusedKeys, AreNotedWithTheReason) {
  const std::string adam = R"("optimizer": {"type": "Adam", "params": )",
                    cycle = R"("optimizer": {"type": "Adam"}, "scheduler": {"type": "OneCycle", "params":
                      {"cycle_min_lr": 1, "cycle_max_lr": 2, )";
  const std::vector<Case> cases{
      {R"("fp16": {"enabled": false, "loss_scale": 128})", "fp16.loss_scale", "fp16 is not enabled"},
      {R"("fp16": {"enabled": true, "loss_scale": 128, "hysteresis": 4})", "fp16.hysteresis",
       "fp16.loss_scale is a static one"},
      {R"("optimizer": {"type": "AdamW", "params": {"adam_w_mode": false}})", "optimizer.params.adam_w_mode",
       "AdamW decouples the decay"},
      {adam + R"({"lr": 0.5}}, "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.25}})",
       "optimizer.params.lr", "the scheduler gives the rate of each step"},
      {cycle + R"("cycle_momentum": false, "cycle_min_mom": 0.5}})", "scheduler.params.cycle_min_mom",
       "cycle_momentum is false"},
      {cycle + R"("decay_lr_rate": 0.5}})", "scheduler.params.decay_lr_rate", "decay_step_size is 0"},
      {R"("zero_optimization": {"stage": 2, "stage3_max_live_parameters": 7})",
       "zero_optimization.stage3_max_live_parameters", "below stage 3 the device holds all parameters"},
      {R"("zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "nvme_path": "/a"}})",
       "zero_optimization.offload_optimizer.nvme_path", "offload_optimizer.device is not nvme"},
      {R"("zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/a"}},
          "penstock": {"durable_directory": "/run"})",
       "zero_optimization.offload_optimizer.nvme_path", "penstock.durable_directory replaces it"},
      {R"("penstock": {"eviction": "lru"})", "penstock.eviction", "nothing is offloaded to nvme"},
      {R"("zero_optimization": {"stage": 2}, "penstock": {"release": "reuse_distance"})", "penstock.release",
       "below stage 3 the device holds all parameters"},
      {R"("optimizer": {"type": "Adagrad"}, "scheduler": {"type": "OneCycle", "params":
          {"cycle_min_lr": 1, "cycle_max_lr": 2, "cycle_max_mom": 0.5}})",
       "scheduler.params.cycle_max_mom", "Adagrad has no betas"},
      {R"("penstock": {"io_engine": "threads"})", "penstock.io_engine", "nothing is offloaded to nvme"},
      {R"("penstock": {"io_deadline_seconds": 7})", "penstock.io_deadline_seconds",
       "nothing is offloaded to nvme"},
      {R"("penstock": {"tiles_in_flight": 7})", "penstock.tiles_in_flight",
       "offload_optimizer.device is not nvme"},
      {R"("penstock": {"integrity": "off"})", "penstock.integrity", "nothing is offloaded to nvme"},
      {R"("penstock": {"durable_directory": "/run", "path_weights": [1, 1]})", "penstock.path_weights",
       "nothing is offloaded to nvme"},
      {R"("optimizer": {"type": "Adagrad", "params": {"betas": [0.5, 0.5]}})", "optimizer.params.betas",
       "Adagrad has no such parameter"},
      {R"("aio": {"block_size": 8192})", "aio.block_size", "nothing is offloaded to nvme"},
      {R"("aio": {"queue_depth": 9})", "aio.queue_depth", "nothing is offloaded to nvme"},
      {R"("zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "buffer_count": 7}})",
       "zero_optimization.offload_optimizer.buffer_count", "offload_optimizer.device is not nvme"},
      {R"("zero_optimization": {"stage": 3, "offload_optimizer": {"pin_memory": false},
          "offload_param": {"device": "cpu"}})",
       "zero_optimization.offload_optimizer.pin_memory", "offload_param.pin_memory decides"},
      {R"("zero_optimization": {"stage": 3, "offload_param": {"pin_memory": false},
          "offload_optimizer": {"device": "cpu"}})",
       "zero_optimization.offload_param.pin_memory", "offload_optimizer.pin_memory decides"},
  };
  for (const Case& one : cases) {
    const auto notes = notes_of(one.keys);
    bool found = false;
    for (const std::string& note : notes) {
      found |= note.starts_with(one.key) && contains(note, "has no effect: " + one.reason);
    }
    EXPECT_TRUE(found) << one.keys << (notes.empty() ? "" : notes.front());
  }
}

TEST(UnusedKeys, AreNotNotedWhereTheyHaveAnEffectOrSayTheDefault) {
  for (const auto& [keys, key] : std::vector<std::pair<std::string, std::string>>{
           {R"("fp16": {"enabled": true, "hysteresis": 4})", "fp16.hysteresis"},
           {R"("fp16": {"enabled": false, "hysteresis": 2})", "fp16.hysteresis"},
           {R"("optimizer": {"type": "Adam", "params": {"adam_w_mode": false}})", "optimizer"},
           {R"("optimizer": {"type": "Lion", "params": {"eps": 1e-8, "adam_w_mode": true}})", "optimizer"},
           {R"("aio": {"queue_depth": 4}, "penstock": {"tiles_in_flight": 4})", "aio"},
           {R"("aio": {"queue_depth": 4}, "penstock": {"tiles_in_flight": 4})", "penstock"},
           {R"("optimizer": {"type": "Adam", "params": {"lr": 0.5}}, "scheduler": {"type": "WarmupLR"})",
            "optimizer.params.lr"},
           {R"("optimizer": {"type": "Adam", "params": {"lr": 0.5}},
               "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.5}})",
            "optimizer.params.lr"},
           {R"("zero_optimization": {"stage": 2, "stage3_max_live_parameters": "auto"})",
            "zero_optimization.stage3_max_live_parameters, line 1: has no effect"}}) {
    EXPECT_FALSE(has_note(notes_of(keys), key)) << keys;
  }
}

}  // namespace
}  // namespace penstock::zero
