#pragma once

#include <cstdint>
#include <string>

namespace penstock::zero {

/// A figure of a step, for the files of csv_monitor and tensorboard.
struct MonitorEvent {
  std::string name;  ///< such as "Train/Samples/train_loss"
  double value = 0;  ///< TensorBoard's files have it in single precision
  std::uint64_t place =
      0;  ///< on the axis: of DeepSpeed's own events, the samples that were trained with so far
};

}  // namespace penstock::zero
