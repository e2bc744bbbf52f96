#pragma once

#include "huge_buffer.hpp"

#include <penstock/cpu_adam/optimizers.hpp>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace penstock::bench {

/// One way to update the parameters; `run` does it once over all data.
struct Contestant {
  std::string name;
  std::string against;       ///< the contestant whose rate is the denominator of its ratio
  double bytes_per_element;  ///< memory traffic of its streams
  std::function<void(parallel::Workers&)> run;
};

/// The contestants and their memory: the same number of elements in each requested format, and one bf16 gradient
/// shared by all.
///
///   floor             reads and writes the bytes of the fp32 format, multiplied by a constant
///   plain loop        AdamW on fp32 states as a textbook loop, vectorised by the compiler
///   fp32, …           adam_step: bf16 gradient in, bf16 parameter out
///   fp32 nontemporal  the same with non-temporal stores of the parameter, as the engine uses them
///   lion, adagrad     optimizer_step in format fp32, against
///   one-moment floor  the floor of their bytes
///   tail fp32, …      the whole host part of a step in two passes: the gradient's norm, which is finite only when
///                     the gradient is; then clip, unscale, Adam and bf16 out
///   passes            the same on fp32 states, one pass per operation: norm, cast to fp32, clip and unscale,
///                     Adam, cast to bf16
class Contest {
 public:
  struct Options {
    std::uint64_t elements;
    std::vector<cpu_adam::StateFormat> formats;  ///< in addition to fp32, which is always measured
    bool tail;                                   ///< measure tails and passes too
    Isa isa;
    bool optimizers = false;  ///< measure Lion and Adagrad too
  };
  explicit Contest(const Options& options);
  ~Contest();
  Contest(const Contest&) = delete;
  Contest& operator=(const Contest&) = delete;

  [[nodiscard]] const std::vector<Contestant>& contestants() const { return contestants_; }

 private:
  struct Streams;
  struct Tensors;

  void add_floor(const Tensors& tensors);
  void add_plain_loop(const Tensors& tensors);
  void add_adam(const Tensors& tensors, bool nontemporal);
  void add_one_moment_floor(const Tensors& tensors);
  void add_optimizer(const Tensors& tensors, const cpu_adam::Hyperparameters& config);
  void add_tail(const Tensors& tensors);
  void add_passes(const Tensors& tensors);

  Options options_;
  std::uint64_t step_ = 0;
  std::unique_ptr<Streams> streams_;
  std::vector<std::unique_ptr<Tensors>> tensors_;
  std::unique_ptr<HugeBuffer> fp32_gradient_;
  std::vector<Contestant> contestants_;
};

}  // namespace penstock::bench
