#include "cpu_adam/check_hyperparameters.hpp"

#include "base/number_text.hpp"

#include <cmath>

namespace penstock::cpu_adam::detail {

namespace {

Result<void> check(const char* operation, bool good, const char* name, const char* wanted, float got) {
  if (good) return ok();
  return Error::invalid_argument(operation).object(name).wanted(wanted).got(number_text(got));
}

}  // namespace

Result<void> check_step(const char* operation, std::uint64_t step) {
  if (step > 0) return ok();
  return Error::invalid_argument(operation)
      .object("step")
      .reason("steps count from 1")
      .wanted("1 or more")
      .got(step);
}

Result<void> check_finite(const char* operation, const char* name, float value) {
  return check(operation, std::isfinite(value), name, "finite", value);
}

Result<void> check_not_negative(const char* operation, const char* name, float value) {
  return check(operation, value >= 0.0f && std::isfinite(value), name, "finite and not negative", value);
}

Result<void> check_beta(const char* operation, const char* name, float value) {
  return check(operation, value >= 0.0f && value < 1.0f, name, "in [0, 1)", value);
}

}  // namespace penstock::cpu_adam::detail
