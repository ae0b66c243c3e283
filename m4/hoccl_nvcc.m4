# HOCCL_CHECK_NVCC: one example is in CUDA C. It is built where nvcc is; nothing else needs it.
AC_DEFUN([HOCCL_CHECK_NVCC], [
  AC_ARG_VAR([NVCC], [the CUDA compiler, for an example that needs it])
  AC_PATH_PROG([NVCC], [nvcc], [], [$PATH:/usr/local/cuda/bin])
  AM_CONDITIONAL([HAVE_NVCC], [test -n "$NVCC"])
])
