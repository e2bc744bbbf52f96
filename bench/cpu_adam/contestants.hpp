#pragma once

#include "huge_buffer.hpp"

#include <penstock/cpu_adam/adam.hpp>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace penstock::bench {

/// Runs once over its data, on these workers.
struct Contestant {
  std::string name;
  std::string against;       ///< the contestant that its rate is divided by
  double bytes_per_element;  ///< that its streams read and write
  std::function<void(parallel::Workers&)> run;
};

/// What is measured, and the memory that it works on: as many elements in each format asked for, with one
/// bf16 gradient for all.
///
///   floor        what the fp32 format reads and writes, multiplied by a constant
///   plain loop   AdamW in fp32 states as one writes it down, vectorised by the compiler
///   fp32, …      adam_step: bf16 gradient in, bf16 parameter out
///   fp32 past    the same with the parameter written past the caches, as the engine has it
///   tail fp32, … all that a step does to a gradient that has arrived, in two passes: its norm, which is not
///                finite when the gradient is not; then clip, unscale, Adam and bf16 out
///   passes       the same in fp32 states, a pass each: norm, cast to fp32, clip and unscale, Adam, bf16 out
class Contest {
 public:
  struct Options {
    std::uint64_t elements;
    std::vector<cpu_adam::StateFormat> formats;  ///< beside fp32, which always takes part
    bool tail;                                   ///< tails and passes too
    Isa isa;
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
