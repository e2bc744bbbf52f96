#pragma once

#include "arguments.hpp"
#include "count.hpp"
#include "handle.hpp"

#include <penstock/penstock.h>

#include <cstdint>
#include <memory>

// What penstock.Tile and penstock.TileState share.
namespace penstock::python {

inline const Choices state_formats{{"fp32", PENSTOCK_STATE_FP32},
                                   {"split", PENSTOCK_STATE_SPLIT},
                                   {"split_bf16", PENSTOCK_STATE_SPLIT_BF16},
                                   {"split_q8", PENSTOCK_STATE_SPLIT_Q8},
                                   {"moments", PENSTOCK_STATE_MOMENTS},
                                   {"moments_bf16", PENSTOCK_STATE_MOMENTS_BF16}};
inline const Choices optimizers{
    {"adam", PENSTOCK_ADAM}, {"lion", PENSTOCK_LION}, {"adagrad", PENSTOCK_ADAGRAD}};
inline const Choices state_kinds{{"master", PENSTOCK_MASTER},
                                 {"first_moment", PENSTOCK_FIRST_MOMENT},
                                 {"second_moment", PENSTOCK_SECOND_MOMENT}};

/// Those of an address alone.
inline const Choices dtypes{
    {"float32", PENSTOCK_FP32}, {"bfloat16", PENSTOCK_BF16}, {"float16", PENSTOCK_FP16}};

inline penstock_hyperparameters hyperparameters_of(float learning_rate, float beta1, float beta2,
                                                   float epsilon, float weight_decay, bool decoupled_decay,
                                                   bool bias_correction) {
  return {.size = sizeof(penstock_hyperparameters),
          .learning_rate = learning_rate,
          .beta1 = beta1,
          .beta2 = beta2,
          .epsilon = epsilon,
          .weight_decay = weight_decay,
          .decoupled_decay = decoupled_decay ? 1 : 0,
          .bias_correction = bias_correction ? 1 : 0};
}

/// penstock.Workers.
class Workers {
 public:
  explicit Workers(const Count& count) {
    const auto threads = count.get<std::uint32_t>("Workers", "threads");
    penstock_workers* made = nullptr;
    run([&] { return penstock_workers_create(threads, &made); });
    handle_ = {made, "Workers"};
  }
  [[nodiscard]] std::shared_ptr<penstock_workers> get(const char* function) const {
    return handle_.get(function);
  }

 private:
  Handle<penstock_workers, penstock_workers_free> handle_;
};

/// None of None. Throws FailedState for workers of another process.
inline std::shared_ptr<penstock_workers> get(const Workers* workers, const char* function) {
  return workers == nullptr ? nullptr : workers->get(function);
}

}  // namespace penstock::python
