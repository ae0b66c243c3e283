# HOCCL_WARNINGS: the warnings every file is built with; --enable-werror makes them errors (CI does). Texts are cut to
# their buffers on purpose, and whether gcc sees that depends on the optimisation.
AC_DEFUN([HOCCL_WARNINGS], [
  AC_ARG_ENABLE([werror], [AS_HELP_STRING([--enable-werror], [treat warnings as errors])])
  HOCCL_CFLAGS="-std=gnu11 -fvisibility=hidden -Wall -Wextra -Wno-format-truncation -Wmissing-prototypes -Wstrict-prototypes -Wswitch-enum -Wshadow -Wvla"
  AS_IF([test "x$enable_werror" = xyes], [HOCCL_CFLAGS="$HOCCL_CFLAGS -Werror"])
  AC_SUBST([HOCCL_CFLAGS])
])
